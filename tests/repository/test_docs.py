"""What the docs name is there: files that they link to, tests and commands that they promise."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs import FENCE, PAGES, ROOT, name_of

RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_sections_find_them(page: Path) -> None:
    for target, section in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        other = (page.parent / target) if target else page
        if other.suffix == ".md":
            assert section in _sections(other), f"{page.name} links to {target}#{section}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_rows_of_tables_have_as_many_cells_as_their_header(page: Path) -> None:
    """A bar within a cell, as in |log π|, would end it, unless it is escaped."""
    for table in re.findall(r"(?:^\|.*\|$\n)+", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE):
        cells = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert len(set(cells)) == 1, f"{name_of(page)}: {table.splitlines()[cells.index(max(cells))]}"


def test_every_promise_has_its_test() -> None:
    promises = [line for line in RELIABILITY.splitlines() if line.startswith("| ") and "test_" in line]
    assert len(promises) > 30
    for promise in promises:
        files = re.findall(r"(test_\w+\.py)(?:\)|`)", promise)
        texts = {name: next((ROOT / "tests").rglob(name)).read_text(encoding="utf-8") for name in files}
        for name in re.findall(r"`(test_\w+|Test\w+)`", promise):
            assert any(re.search(rf"(def|class) {name}", text) for text in texts.values()), f"{name} of {files}"


def test_the_first_teams_script_is_shown_to_the_letter_and_short() -> None:
    script = (ROOT / "docs" / "first_team.sh").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "first_team.md").read_text(encoding="utf-8")
    assert f"```bash\n{script}```\n" in page
    commands = re.sub(r"<<'END'\n.*?\nEND\n", "\n", script, flags=re.DOTALL)
    lines = [line for line in commands.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 15


def _sections(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_extra_is_in_the_table_of_them() -> None:
    project = tomllib.loads((ROOT / "packages" / "marft" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = [line for line in (ROOT / "docs/install.md").read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    told = {name for line in table for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    assert told == set(project["optional-dependencies"]) - {"dev"}


def test_the_places_that_the_architecture_names_are_there() -> None:
    """Of its tables of rooms and of what to change."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Seams")[0]
    roots = [ROOT, ROOT / "packages" / "marft" / "src" / "marft", *ROOT.glob("packages/*/src")]
    named = set(re.findall(r"`([a-z_][\w-]*/[\w/.-]*(?:\.\w+|/))`", page))
    assert len(named) > 100
    assert [path for path in sorted(named) if not any((root / path).exists() for root in roots)] == []
