"""The pages that are read off the code are what the code says, and say what every key means."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType

import pytest

from marft.config.settings import Count, Settings

ROOT = Path(__file__).parents[1]


class Told(Settings):
    steps: Count = 3  # how often
    # of the beginning, and what comes
    # after it
    share: float | None = None


class Untold(Settings):
    steps: Count = 3


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    import keys

    return keys


@pytest.mark.slow
def test_the_pages_are_what_the_code_says(keys: ModuleType) -> None:
    import pages

    assert pages.stale() == [], "run python tools/site/pages.py"


def test_the_comment_beside_a_key_is_its_meaning(keys: ModuleType) -> None:
    steps, share = keys.keys_of(Told)
    assert (steps.type, steps.default, steps.meaning) == ("integer, ≥ 1", "3", "how often")
    assert (share.type, share.default, share.meaning) == ("number", "none", "of the beginning, and what comes after it")


def test_its_examples_are_true(keys: ModuleType) -> None:
    assert doctest.testmod(keys) == (0, 2)


def test_a_key_without_a_meaning_is_refused(keys: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"Untold\.steps: say in a comment beside it what it means"):
        keys.keys_of(Untold)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []
