"""Pages that are read off the code are what it says, and say what every key means; links lead to what they mean."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
from pydantic import Field

from marft.config.settings import Count, Settings
from tests.sources import ROOT


class Told(Settings):
    steps: Count = Field(3, description="how often")
    share: float | None = Field(None, description="of the beginning, and what comes after it")


class Untold(Settings):
    steps: Count = 3


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    import links

    return links


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    import keys

    return keys


@pytest.mark.slow
def test_the_pages_are_what_the_code_says(keys: ModuleType) -> None:
    import pages

    assert pages.stale() == [], "run python tools/site/pages.py"


def test_the_description_of_a_key_is_its_meaning(keys: ModuleType) -> None:
    steps, share = keys.keys_of(Told)
    assert (steps.type, steps.default, steps.meaning) == ("integer, ≥ 1", "3", "how often")
    assert (share.type, share.default, share.meaning) == ("number", "none", "of the beginning, and what comes after it")


def test_a_key_without_a_meaning_is_refused(keys: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"Untold\.steps: say in Field"):
        keys.keys_of(Untold)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []


class TestLinks:
    def test_its_examples_are_true(self, links: ModuleType) -> None:
        assert doctest.testmod(links) == (0, 3)

    @pytest.mark.parametrize(
        ("uri", "link", "leads"),
        [
            ("index.md", "[runs](docs/training.md#resume)", "[runs](training.md#resume)"),
            ("training.md", "[start](../README.md)", "[start](index.md)"),
            (
                "training.md",
                "[types](../packages/marft/src/marft/common/types.py)",
                "[types](source/packages/marft/src/marft/common/types.py.md)",
            ),
            (
                "api/types.md",
                "[types](../../packages/marft/src/marft/common/types.py)",
                "[types](../source/packages/marft/src/marft/common/types.py.md)",
            ),
            ("source/benchmarks.md", "[all](docs/results.md)", "[all](../results.md)"),
            ("training.md", "[paper](https://arxiv.org/abs/1)", "[paper](https://arxiv.org/abs/1)"),
            ("training.md", "[below](#resume)", "[below](#resume)"),
            ("training.md", "[gone](../nothing.py)", "[gone](../nothing.py)"),
        ],
    )
    def test_a_link_leads_to_where_the_site_has_what_it_means(
        self, links: ModuleType, uri: str, link: str, leads: str
    ) -> None:
        assert links.with_links(link, uri) == leads

    def test_files_outside_the_docs_get_pages_of_their_own(self, links: ModuleType) -> None:
        text = "[a](training.md) [b](../README.md) [c](../packages/marft/src/marft/common/types.py) [d](https://arxiv.org) [e](../benchmarks)"
        assert list(links.linked_files("docs/first.md", text)) == [
            "packages/marft/src/marft/common/types.py",
            "benchmarks",
        ]

    def test_the_page_of_a_file_is_its_text_in_which_nothing_is_a_link(self, links: ModuleType) -> None:
        page = links.page_of("tools/site/links.py")
        assert (ROOT / "tools" / "site" / "links.py").read_text(encoding="utf-8").rstrip("\n") in page
        assert links.with_links(page, "source/tools/site/links.py.md") == page

    def test_the_page_of_a_folder_says_what_its_modules_say_of_themselves(self, links: ModuleType) -> None:
        page = links.page_of("benchmarks")
        assert "[`throughput.py`](benchmarks/throughput.py) | " in page
        assert ".json" not in page
        assert set(links.linked_files("benchmarks", page)) >= {"benchmarks/throughput.py", "benchmarks/README.md"}

    def test_every_link_of_every_page_leads_somewhere(self, links: ModuleType) -> None:
        pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in links.MOVED)]
        lost = [
            f"{page.name}: {found[2]}"
            for page in pages
            for found in links.LINK.finditer(page.read_text(encoding="utf-8"))
            if not (ROOT / links.target_of(page.relative_to(ROOT).as_posix(), found[2])).exists()
        ]
        assert lost == []
