"""The pages of the docs, and the blocks of code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Args:
        place: ``docs/tools.md:9``, for messages.
        language: what stands behind its first fence.
    """

    page: str
    place: str
    language: str
    text: str


def name_of(page: Path) -> str:
    """``docs/tools.md``."""
    return page.relative_to(ROOT).as_posix()


def blocks(language: str = "") -> Iterator[Block]:
    """Every block of all pages, or those in one language."""
    for page in PAGES:
        text, name = page.read_text(encoding="utf-8"), name_of(page)
        for found in FENCE.finditer(text):
            if language in ("", found[1]):
                line = text[: found.start()].count("\n") + 1
                yield Block(name, f"{name}:{line}", found[1], found[2])


def inline(command: str) -> Iterator[tuple[str, str]]:
    """``(page, words)`` of every piece of inline code that begins with a command."""
    for page in PAGES:
        for found in re.findall(rf"`({command} [^`]+)`", FENCE.sub("", page.read_text(encoding="utf-8"))):
            yield name_of(page), " ".join(found.split())
