"""Every paper that the code cites has its row on the page of papers, and what a row names is there."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from marft.common.metrics import find_metric
from marft.common.packages import bundled_plugins
from marft.config.algorithms import PRESETS
from marft.config.plugins import find_plugin
from marft.config.run import RunSettings
from marft.config.sections import section_class
from tests.docs import PAGES, ROOT, name_of
from tests.plugin_kinds import KINDS
from tests.sources import source, source_files

MENTION = {
    "marft/config/algorithms.py",
    "marft/common/metrics/catalog.py",
}  # say whose a thing is, and do not do it
NO_NAMES = {
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December", "GB",
}  # fmt: skip
NAME = r"(?:(?:[Vv]on |[Vv]an |[Dd]e )?[A-ZÄÅÉÖÜ][\w-]+)"
YEAR = r",? \(?((?:18|19|20)\d\d)\b"
CITATION = re.compile(rf"(?P<several>{NAME} et al\.)(?:{YEAR})?|(?P<two>{NAME} and {NAME}){YEAR}|(?P<one>{NAME}){YEAR}")
ANCHOR = re.compile(r"et al\.|\b(?:18|19|20)\d\d\b")
NUMBER = re.compile(r"arxiv(?:\.org/(?:abs|pdf|html)/|[ :])(\d+\.\d+)", re.IGNORECASE)
PARTS = {
    "channel": "channels", "credit": "credits", "objective": "objectives", "schedule": "schedules",
    "weight": "teammate_weights",
    "environment": "environments", "team": "organizations", "tools": "tools", "store": "memories", "proposer": "proposers",
    "model": "world_models",
}  # fmt: skip


@pytest.fixture(scope="module")
def papers() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools" / "site"))
        import papers

        yield papers


@pytest.fixture(scope="module")
def rows(papers: ModuleType) -> list[Any]:
    return list(papers.papers().all())


def citations(text: str) -> set[str]:
    """What a text cites, as ``Yu et al. 2022``; lines of a docstring or of comments may break it."""
    found = set()
    for match in CITATION.finditer(flat(text)) if ANCHOR.search(text) else ():
        who = match["several"] or match["two"] or match["one"]
        year = next((group for group in (match[2], match[4], match[6]) if group), "")
        found |= {f"{who} {year}".strip()} if who not in NO_NAMES else set()
    return found


def flat(text: str) -> str:
    """It without its breaks between lines, nor the marks of comments."""
    return " ".join(line.strip().removeprefix("# ") for line in text.splitlines())


@cache
def cited() -> dict[str, frozenset[str]]:
    """The citations of every file of ours, by its place in a package."""
    texts = {place: path.read_text(encoding="utf-8") for place, path in source_files(".py", ".toml", ".jinja").items()}
    return {file: frozenset(citations(text) | set(NUMBER.findall(text))) for file, text in texts.items()}


def says(row: Any, citation: str) -> bool:
    names = [name.replace(",", "") for name in (row.by, *row.also)]
    return citation in (*names, row.arxiv) or (citation.endswith("et al.") and row.by.startswith(citation))


class TestCitations:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("PPO (Schulman et al. 2017, §6)", {"Schulman et al. 2017"}),
            ("as in Yu et al.'s code, and\n    # de Witt et al.\n    # 2020", {"Yu et al.", "de Witt et al. 2020"}),
            ("Korn and Graubard (1998); Dao 2023", {"Korn and Graubard 1998", "Dao 2023"}),
            ("von Neumann 1941; LlamaRL, 2025", {"von Neumann 1941", "LlamaRL 2025"}),
            ("8 May 2023, 2039 GB, GB, 2039", set()),
        ],
    )
    def test_are_found_however_they_are_written(self, text: str, found: set[str]) -> None:
        assert citations(text) == found

    def test_every_paper_that_a_file_cites_has_a_row_with_the_file(self, papers: ModuleType, rows: list[Any]) -> None:
        plain = {passing.cited for passing in papers.papers().passing}
        lost = [
            f"{file} cites {citation}"
            for file, found in cited().items()
            for citation in found - plain
            if not any(
                says(row, citation) and (file in row.here or file in MENTION or file.endswith(".jinja")) for row in rows
            )
        ]
        assert lost == [], "add it to tools/site/papers.toml, or the file to its row, then run tools/site/pages.py"

    def test_every_arxiv_number_of_the_docs_has_a_row(self, rows: list[Any]) -> None:
        pages = [page for page in PAGES if page.name != "papers.md"]
        numbers = {number: name_of(page) for page in pages for number in NUMBER.findall(page.read_text("utf-8"))}
        assert {number: page for number, page in numbers.items() if number not in {row.arxiv for row in rows}} == {}

    def test_what_is_cited_in_passing_is_still_cited_and_has_no_row(self, papers: ModuleType, rows: list[Any]) -> None:
        for passing in papers.papers().passing:
            assert any(passing.cited in found for found in cited().values()), passing.cited
            assert not any(says(row, passing.cited) for row in rows), passing.cited
            assert passing.why


class TestRows:
    def test_every_preset_is_on_the_page_and_no_other(self, rows: list[Any]) -> None:
        assert {preset for row in rows for preset in row.presets} == set(PRESETS)

    def test_whatever_they_name_is_there(self, rows: list[Any]) -> None:
        for row in rows:
            assert row.here, row.name
            for file in row.here:
                assert source(file).is_file(), f"{row.name}: {file}"
            for file in row.measured:
                assert (ROOT / "benchmarks" / "results" / file).is_file(), f"{row.name}: {file}"
            for metric in row.metrics:
                assert find_metric(metric) or find_metric(f"agents/solver/{metric}"), f"{row.name}: {metric}"

    def test_every_test_that_holds_one_exists(self, rows: list[Any]) -> None:
        for row in rows:
            for test in row.tests:
                file, _, name = test.partition("::")
                assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{row.name}: {test}"

    def test_every_key_is_one_of_a_recipe(self, papers: ModuleType, rows: list[Any]) -> None:
        for row in rows:
            for key in row.keys:
                path, _, value = key.partition(" = ")
                assert is_key(RunSettings, path.split("."), value.strip('"')), f"{row.name}: {key}"

    @pytest.mark.parametrize("key", ["algorithm.klstop", "algorithm.credit.decoy", "policies.NAME.pool.decoy"])
    def test_what_is_no_key_is_told_from_one(self, papers: ModuleType, key: str) -> None:
        assert not is_key(RunSettings, key.split("."), "")

    def test_no_name_that_is_no_part_is_taken_for_one(self, papers: ModuleType) -> None:
        assert is_key(RunSettings, ["algorithm", "credit", "name"], "gae")
        assert not is_key(RunSettings, ["algorithm", "credit", "name"], "gay-lussac")

    def test_each_says_what_it_was_held_to_or_that_it_was_to_nothing(self, rows: list[Any]) -> None:
        for row in rows:
            assert bool(row.tests or row.measured) != bool(row.nothing), row.name
            assert not row.published or row.measured, f"{row.name}: a figure of the paper needs a result of ours"

    def test_a_slow_reference_alone_is_called_that(self, papers: ModuleType) -> None:
        row = papers.Paper(
            name="A", by="B 2000", title="C", what="d", here=("common/types.py",), reference=("test_a.py::test_b",)
        )
        assert "**a slow reference alone**: [b](../tests/test_a.py)" in papers._row(row)
        assert "alone" not in papers._row(row.model_copy(update={"measured": ("lag.md",)}))

    def test_numbers_are_well_formed_and_nobody_else_s(self, rows: list[Any]) -> None:
        numbers = [row.arxiv for row in rows if row.arxiv]
        assert [number for number in numbers if not re.fullmatch(r"\d\d(0[1-9]|1[0-2])\.\d{4,5}", number)] == []
        for kept in (numbers, [row.name for row in rows], [row.title for row in rows]):
            assert [one for one, count in Counter(kept).items() if count > 1] == []

    def test_whoever_has_no_number_says_where_it_stands(self, rows: list[Any]) -> None:
        assert [row.name for row in rows if bool(row.arxiv) == bool(row.venue)] == []

    def test_each_is_spoken_of_in_the_code_or_the_docs(self, rows: list[Any]) -> None:
        """A row of what is gone would stay for ever."""
        files = [*source_files(".py").values(), *(page for page in PAGES if page.name != "papers.md")]
        text = " ".join(flat(file.read_text(encoding="utf-8")) for file in files)
        for row in rows:
            assert any(said in text for said in (row.name, row.by, *row.also, row.arxiv) if said), row.name


class TestPage:
    def test_it_is_what_the_table_says(self, papers: ModuleType) -> None:
        page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
        assert page == papers.page(), "run python tools/site/pages.py"

    def test_its_examples_are_true(self, papers: ModuleType) -> None:
        assert doctest.testmod(papers) == (0, 1)

    def test_it_ends_with_what_stays_out_and_why(self, papers: ModuleType) -> None:
        last = papers.page().partition("## What stays out")[2]
        assert [line.partition(":")[0] for line in last.split("\n") if line] == [
            "- **Blockchains**", "- **Agent network protocols beyond A2A**", "- **Vision and voice**",
        ]  # fmt: skip

    def test_every_difference_that_is_listed_is_linked_to(self, papers: ModuleType) -> None:
        """So a preset of the table in docs/algorithms.md cannot be missed."""
        assert {"grpo", "comam", "marft-paper-*"} <= papers.listed_differences()
        assert {"grpo", "comam", "marft"} <= papers.measured_presets()


def is_key(settings: Any, path: list[str], value: str) -> bool:
    """Whether a table has a key, given as ``algorithm.credit.name``; ``NAME`` stands for any name of a recipe's own."""
    from keys import inner_tables

    first, *rest = [name for name in path if name != "NAME"]
    if first in settings.extra_keys():
        return not rest or is_key(section_class(first), rest, value)
    if first not in settings.model_fields:
        return False
    if rest and (kind := PARTS.get(first)):
        if rest == [KINDS[kind].tag]:
            return not value or value in bundled_plugins(kind)
        return any(is_key(find_plugin(kind, name), rest, value) for name in bundled_plugins(kind))
    return not rest or any(is_key(inner, rest, value) for inner in inner_tables(settings.model_fields[first]))
