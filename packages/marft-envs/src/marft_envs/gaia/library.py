"""Lookup sources: pages for word search, and files attached to the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from marft.common.texts import storable
from marft.envs.contents import content_of
from marft_envs.shop.search import Index

# characters of a page or file shown at once; the part fits into the default limit of a tool reply (512 tokens)
PART = 1500
LARGEST = 50_000_000  # maximum bytes of a readable file
TEXTS = (".html", ".htm", ".md", ".txt")


class Page(NamedTuple):
    """One page in the corpus."""

    title: str
    text: str


class Library:
    """Corpus of pages, numbered from 1.

    The index is built by the first search. Sessions may share a corpus.
    """

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = tuple(pages)

    @property
    def digest(self) -> str:
        """Digest of all pages; "" for an empty corpus."""
        return content_of(*(part for page in self.pages for part in page)) if self.pages else ""

    @cached_property
    def _index(self) -> Index:
        return Index([f"{page.title} {page.title} {page.text}" for page in self.pages])

    def found(self, query: str, most: int) -> list[tuple[int, Page]]:
        """Return up to ``most`` pages that share a word with a query, with their numbers, best match first.

        A word in the title counts twice.
        """
        return [(place + 1, self.pages[place]) for place in self._index.best(query, most)]

    def page(self, number: int) -> Page:
        """Return a page by its number.

        Raises:
            ValueError: the page does not exist. The message is for the agent.
        """
        if not 1 <= number <= len(self.pages):
            raise ValueError(f"there is no page {number}; search, and open one by its number")
        return self.pages[number - 1]


def library_of(folder: str) -> Library:
    """Load all text files under a folder as pages, in alphabetical order, with the file name as title.

    Raises:
        ValueError: the folder has no text files, or a file is unreadable.
    """
    files = sorted(file for file in Path(folder).rglob("*") if file.suffix.lower() in TEXTS and file.is_file())
    if not files:
        raise ValueError(f"environment.pages: {folder} holds no files of text; pages end with {', '.join(TEXTS)}")
    return Library([Page(file.stem, text_of(file)) for file in files])


def text_of(file: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        ValueError: the file is missing, larger than ``LARGEST`` bytes, or not text.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"{file.name} cannot be read: {error.strerror}") from error
    if len(content) > LARGEST:
        raise ValueError(f"{file.name} is larger than {LARGEST // 1_000_000} MB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(f"{file.name} is no text in UTF-8, and only texts can be read: tables, JSON, code, pages")
    return storable(text)


def part_of_text(text: str, part: int, whole: int = PART) -> str:
    """Return a numbered part of a text, with at most ``whole`` characters.

    Parts end at line breaks where possible. If a text has several parts, the last line gives the part's number.

    >>> part_of_text("one\\ntwo\\nsix", 2, 8)
    'six\\n[part 2 of 2]'

    Raises:
        ValueError: the part does not exist.
    """
    parts = _parts(text, whole)
    if not 1 <= part <= len(parts):
        raise ValueError(f"there is no part {part}: it has {len(parts)}")
    return parts[part - 1] if len(parts) == 1 else f"{parts[part - 1]}\n[part {part} of {len(parts)}]"


def _parts(text: str, whole: int) -> list[str]:
    found, part = list[str](), ""
    for line in text.splitlines(keepends=True):
        pieces = iter(line)
        while piece := "".join(islice(pieces, whole)):
            if part and len(part) + len(piece) > whole:
                found.append(part.removesuffix("\n"))
                part = ""
            part += piece
    return [*found, part.removesuffix("\n")]


class Attached(NamedTuple):
    """Files attached to a question: texts, or paths read on demand."""

    files: Mapping[str, str | Path]

    def text(self, name: str) -> str:
        """Return the text of a file.

        Raises:
            ValueError: the file does not exist or is not text. The message is for the agent.
        """
        if name not in self.files:
            known = ", ".join(sorted(self.files)) or "none"
            raise ValueError(f"there is no file {name[:80]!r}; there are: {known}")
        file = self.files[name]
        return text_of(file) if isinstance(file, Path) else file
