"""The map of the rooms in docs/architecture.md is whole, no file imports itself in a circle, and files stay small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.nights import NIGHT
from tests.sources import ROOT, SOURCES, source, source_files

MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PLACES = [*source("marft").iterdir(), *(place for folder in SOURCES for place in folder.iterdir())]
ROOMS = {f"{path.name}/" for path in PLACES if (path / "__init__.py").exists()} - {"marft/"}


def within(node: ast.AST) -> list[ast.AST]:
    """The statements right within one: expressions hold none."""
    parts = ("body", "handlers", "cases", "orelse", "finalbody")
    return [child for part in parts for child in getattr(node, part, [])]


def statements(file: Path) -> Iterator[ast.AST]:
    """Every statement of a file, however deep."""
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += within(node)


def test_every_room_is_on_the_map() -> None:
    table = MAP.split("## Rooms")[1].split("## Seams")[0]
    assert set(re.findall(r"`([\w./]+)`", table)) >= ROOMS


def modules() -> dict[str, Path]:
    """Every file by the name that it is imported by."""
    files = source_files(".py").items()
    return {place.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): file for place, file in files}


def imported(file: Path, known: dict[str, Path]) -> set[str]:
    """The modules that importing a file imports: neither for typing alone, nor only when a function is called."""
    found = set[str]()
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            waiting += within(node)
    return found & known.keys()


def test_no_file_imports_itself_in_a_circle() -> None:
    known = modules()
    TopologicalSorter({name: imported(file, known) for name, file in known.items()}).prepare()  # raises CycleError


@pytest.mark.parametrize("folder", ["packages", "tests", "tools", "benchmarks"])
def test_files_have_at_most_600_lines_and_functions_80(folder: str) -> None:
    large = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        large += [str(file)] if len(file.read_text(encoding="utf-8").splitlines()) > 600 else []
        for node in statements(file) if NIGHT or folder == "packages" else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                large += [f"{file}: {node.name}"] if node.end_lineno - node.lineno >= 80 else []
    assert not large, "\n".join(large)
