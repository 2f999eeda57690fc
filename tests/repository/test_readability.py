"""Pages that people write are readable: short sentences, few pronouns, and not too many words in all."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.sources import ROOT

MAX_PAGES, MAX_TOTAL_WORDS = 45, 60_000  # of all hand-written pages but worlds and research notes
GENERATED = {"settings.md", "metrics.md", "presets.md", "papers.md", "commands.md"}
RESEARCH_NOTES = {"flows.md", "dyna.md", "federated.md", "profiles.md"}
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "skills").rglob("*.md"),
                *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md"))])  # fmt: skip


@pytest.fixture
def readability(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    import readability

    return readability


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_no_long_sentence_and_few_pronouns(readability: ModuleType, page: Path) -> None:
    figures = readability.read(page.read_text(encoding="utf-8"))
    assert figures.too_long == [], "split these sentences"
    if figures.words > 100:
        assert figures.pronoun_share <= readability.MAX_PRONOUN_SHARE, (
            "python tools/site/readability.py PAGE lists them"
        )


def test_there_are_not_too_many_pages_and_words() -> None:
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED | RESEARCH_NOTES]
    assert len(pages) <= MAX_PAGES
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MAX_TOTAL_WORDS


def test_sentences_are_found_in_prose_alone(readability: ModuleType) -> None:
    page = """# No sentence

First one, e.g. with `code. And more` and [a link](x.md). Second one: with a colon.

- An item
- Another
  that goes on.

| a | table |

```sh
marft train demo. Not Prose.
```
"""
    assert readability.sentences_of(page) == [
        "First one, e.g with CODE and a link.", "Second one: with a colon.", "An item", "Another that goes on."
    ]  # fmt: skip


def test_words_and_pronouns_are_counted(readability: ModuleType) -> None:
    figures = readability.read("This is what it was.\n\n" + "word " * 36 + "end.")
    assert figures.words == 42
    assert figures.pronoun_share == 4 / 42
    assert len(figures.too_long) == 1
