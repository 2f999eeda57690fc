"""Lookup sources: pages for word search, and files attached to the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from marft.common.errors import UserError
from marft.common.texts import replace_surrogates
from marft.envs.tasks import digest_content
from marft_envs.shop.search import SearchIndex

# characters of a page or file shown at once; the part fits into the default limit of a tool reply (512 tokens)
PART_CHARACTERS = 1500
MAX_FILE_BYTES = 50_000_000  # maximum bytes of a readable file
TEXT_SUFFIXES = (".html", ".htm", ".md", ".txt")


class Page(NamedTuple):
    """One page in the corpus."""

    title: str
    text: str


class PageLibrary:
    """Corpus of pages, numbered from 1.

    The index is built by the first search. Sessions may share a corpus.
    """

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = tuple(pages)

    @property
    def digest(self) -> str:
        """Digest of all pages; "" for an empty corpus."""
        return digest_content(*(part for page in self.pages for part in page)) if self.pages else ""

    @cached_property
    def _search_index(self) -> SearchIndex:
        return SearchIndex([f"{page.title} {page.title} {page.text}" for page in self.pages])

    def search(self, query: str, limit: int) -> list[tuple[int, Page]]:
        """Return up to ``limit`` pages that share a word with a query, with their numbers, best match first.

        A word in the title counts twice.
        """
        return [(place + 1, self.pages[place]) for place in self._search_index.search(query, limit)]

    def get_page(self, number: int) -> Page:
        """Return a page by its number.

        Raises:
            UserError: the page does not exist. The message is for the agent.
        """
        if not 1 <= number <= len(self.pages):
            raise UserError(f"there is no page {number}; search, and open one by its number")
        return self.pages[number - 1]


def load_library(folder: str) -> PageLibrary:
    """Load all text files under a folder as pages, in alphabetical order, with the file name as title.

    Raises:
        UserError: the folder has no text files, or a file is unreadable.
    """
    files = sorted(file for file in Path(folder).rglob("*") if file.suffix.lower() in TEXT_SUFFIXES and file.is_file())
    if not files:
        raise UserError(
            f"environment.pages: {folder} holds no files of text; pages end with {', '.join(TEXT_SUFFIXES)}"
        )
    return PageLibrary([Page(file.stem, read_text_file(file)) for file in files])


def read_text_file(file: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        UserError: the file is missing, larger than ``MAX_FILE_BYTES`` bytes, or not text.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{file.name} cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise UserError(f"{file.name} is larger than {MAX_FILE_BYTES // 1_000_000} MB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UserError(f"{file.name} is no text in UTF-8, and only texts can be read: tables, JSON, code, pages")
    return replace_surrogates(text)


def text_part(text: str, part: int, part_size: int = PART_CHARACTERS) -> str:
    """Return a numbered part of a text, with at most ``part_size`` characters.

    Parts end at line breaks where possible. If a text has several parts, the last line gives the part's number.

    >>> text_part("one\\ntwo\\nsix", 2, 8)
    'six\\n[part 2 of 2]'

    Raises:
        UserError: the part does not exist.
    """
    parts = _split_parts(text, part_size)
    if not 1 <= part <= len(parts):
        raise UserError(f"there is no part {part}: it has {len(parts)}")
    return parts[part - 1] if len(parts) == 1 else f"{parts[part - 1]}\n[part {part} of {len(parts)}]"


def _split_parts(text: str, part_size: int) -> list[str]:
    parts, part = list[str](), ""
    for line in text.splitlines(keepends=True):
        pieces = iter(line)
        while piece := "".join(islice(pieces, part_size)):
            if part and len(part) + len(piece) > part_size:
                parts.append(part.removesuffix("\n"))
                part = ""
            part += piece
    return [*parts, part.removesuffix("\n")]


class Attachments(NamedTuple):
    """Files attached to a question: texts, or paths read on demand."""

    files: Mapping[str, str | Path]

    def read_text(self, name: str) -> str:
        """Return the text of a file.

        Raises:
            UserError: the file does not exist or is not text. The message is for the agent.
        """
        if name not in self.files:
            file_names = ", ".join(sorted(self.files)) or "none"
            raise UserError(f"there is no file {name[:80]!r}; there are: {file_names}")
        file = self.files[name]
        return read_text_file(file) if isinstance(file, Path) else file
