"""What can be looked up in a task: pages, which are searched by words, and the files that came with the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from marft.common.texts import storable
from marft.envs.contents import content_of
from marft_envs.shop.search import Index

PART = 1500  # characters of a page or file that are shown at once: less than agents see of an answer (512 tokens)
LARGEST = 50_000_000  # bytes of a file that is read
TEXTS = (".html", ".htm", ".md", ".txt")


class Page(NamedTuple):
    """A page of the corpus."""

    title: str
    text: str


class Library:
    """Pages by number, from 1 on; the index is made when somebody searches first, and sessions may share it."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = tuple(pages)

    @property
    def digest(self) -> str:
        """Of all pages; "": there are none."""
        return content_of(*(part for page in self.pages for part in page)) if self.pages else ""

    @cached_property
    def _index(self) -> Index:
        return Index([f"{page.title} {page.title} {page.text}" for page in self.pages])

    def found(self, query: str, most: int) -> list[tuple[int, Page]]:
        """Pages that share a word with a query, each with its number, the likeliest first; a title counts twice."""
        return [(place + 1, self.pages[place]) for place in self._index.best(query, most)]

    def page(self, number: int) -> Page:
        """
        Raises:
            ValueError: there is no such page, said in words for the agent.
        """
        if not 1 <= number <= len(self.pages):
            raise ValueError(f"there is no page {number}; search, and open one by its number")
        return self.pages[number - 1]


def library_of(folder: str) -> Library:
    """The pages of a folder, each a file of text, its name the title; in the order of their names.

    Raises:
        ValueError: there is none, or one cannot be read.
    """
    files = sorted(file for file in Path(folder).rglob("*") if file.suffix.lower() in TEXTS and file.is_file())
    if not files:
        raise ValueError(f"environment.pages: {folder} holds no files of text; pages end with {', '.join(TEXTS)}")
    return Library([Page(file.stem, text_of(file)) for file in files])


def text_of(file: Path) -> str:
    """A file as text.

    Raises:
        ValueError: it is not there, too large, or no text.
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
    """A part of a text, by number, of so many characters at most and cut between lines where it can be; what it is a
    part of is said where there are several.

    >>> part_of_text("one\\ntwo\\nsix", 2, 8)
    'six\\n[part 2 of 2]'

    Raises:
        ValueError: there is no such part.
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
    """Files that came with a question: texts, or places to read them from when they are asked for."""

    files: Mapping[str, str | Path]

    def text(self, name: str) -> str:
        """
        Raises:
            ValueError: it is not there, or no text, said in words for the agent.
        """
        if name not in self.files:
            known = ", ".join(sorted(self.files)) or "none"
            raise ValueError(f"there is no file {name[:80]!r}; there are: {known}")
        file = self.files[name]
        return text_of(file) if isinstance(file, Path) else file
