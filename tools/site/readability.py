"""Measure how readable the hand-written pages are: words a sentence, and the share of pronouns and auxiliaries.

    python tools/site/readability.py                 # a line per page
    python tools/site/readability.py docs/teams.md   # and the sentences of a page that are too long or too vague

Code blocks, tables and headings are not prose and do not count. Inline code and a link's address count as one word.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_WORDS = 35  # of one sentence: a test refuses more
MAX_PRONOUN_SHARE = 0.13  # of a page's words: a test refuses more
VAGUE_SHARE = 0.3  # of one sentence's words: listed when a page is named
PRONOUN = re.compile(
    "what|that|it|those|who|whom|whose|them|such|ones?|so|there|which|others?|else|anew|nobody|somebody|whoever|"
    "whatever|none|also|where|when|alone|beside|once|again|they|these|all|any|of|is|are|was|were|be|been|as|has|had|"
    "have|may|must"
)
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|vs|etc|cf|Fig|Eq|et al|No)\.")


@dataclass(frozen=True)
class Readability:
    """Figures of one page: sentences, words of prose, the share of pronouns, and the sentences that are too long."""

    sentences: list[str]
    words: int
    pronoun_share: float
    too_long: list[str]

    @property
    def mean_words(self) -> float:
        """Return the mean number of words a sentence."""
        return self.words / max(1, len(self.sentences))


def paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a Markdown page, without code blocks, tables, headings and HTML."""
    text = re.sub(r"^\s*(```|~~~).*?^\s*\1", "\n", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        bare = line.strip().lstrip("> ")
        starts_item = re.match(r"([-*+]|\d+\.)\s", bare)
        if not bare or starts_item or bare.startswith(("#", "|", "<", "!!!", "---")):
            if lines:
                yield " ".join(lines)
            lines = []
            if not starts_item:
                continue
        lines.append(re.sub(r"^([-*+]|\d+\.)\s+", "", bare))


def sentences_of(page: str, code: str = "CODE") -> list[str]:
    """Return the sentences of a Markdown page.

    Args:
        page: text of the page.
        code: replacement for inline code, as for :func:`re.sub`; ``\\1`` keeps it.
    """
    found = []
    for paragraph in paragraphs(page):
        plain = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", paragraph)
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
        plain = re.sub(r"`([^`]*)`", code, plain)
        plain = ABBREVIATIONS.sub(lambda match: match.group(0)[:-1], plain).replace("**", "").replace("*", "")
        found += [piece.strip() for piece in re.split(r"(?<=[.!?])[\")]?\s+(?=[A-Z\"(])", plain) if piece.strip()]
    return found


def words_of(sentence: str) -> list[str]:
    """Return the words of a sentence; numbers count, punctuation does not."""
    return re.findall(r"[A-Za-z0-9][\w'’.,/+-]*", sentence)


def pronoun_share(words: list[str]) -> float:
    """Return the share of words that are pronouns, relatives or auxiliaries."""
    return sum(PRONOUN.fullmatch(word.strip(".,").lower()) is not None for word in words) / max(1, len(words))


def read(page: str) -> Readability:
    """Return the figures of a Markdown page."""
    sentences = sentences_of(page)
    words = [word for sentence in sentences for word in words_of(sentence)]
    too_long = [sentence for sentence in sentences if len(words_of(sentence)) > MAX_WORDS]
    return Readability(sentences, len(words), pronoun_share(words), too_long)


def main() -> None:
    """Print the figures of the pages that the command line names, or of all pages under docs."""
    named = [Path(name) for name in sys.argv[1:]]
    for path in named or sorted(Path("docs").rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        figures = read(page)
        print(
            f"{path}: {len(page.split())} words, {figures.mean_words:.1f} a sentence, "
            f"{len(figures.too_long)} sentences over {MAX_WORDS}, pronouns {figures.pronoun_share:.3f}"
        )
        if named:
            vague = [one for one in figures.sentences if pronoun_share(words_of(one)) > VAGUE_SHARE]
            for kind, listed in (("long", figures.too_long), ("vague", vague)):
                print(*(f"  {kind}: {sentence}" for sentence in listed), sep="\n")


if __name__ == "__main__":
    main()
