"""The map of the rooms in docs/architecture.md is whole, nothing imports what is above it, and files stay small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.nights import NIGHT

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "marft"
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} - {
    "__init__",
    "__main__",
}


def levels() -> list[set[str]]:
    """The rooms from the lowest to the highest, as the page has them."""
    line = MAP.split("Dependencies point downwards:")[1].split("\n\n")[0]
    return [set(re.findall(r"`(\w+)`", part)) for part in line.split("←")]


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


def imports(file: Path) -> Iterator[str]:
    """The rooms that a file imports from, wherever in it."""
    for node in statements(file):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "marft":
            inner = (node.module or "").split(".")[1:]
            yield from inner[:1] or [alias.name for alias in node.names if alias.name in ROOMS]
        elif isinstance(node, ast.Import):
            yield from (
                name.split(".")[1] for name in (alias.name for alias in node.names) if name.startswith("marft.")
            )


def test_every_room_is_on_the_map() -> None:
    table = MAP.split("## Rooms")[1].split("Dependencies point downwards")[0]
    named = {name.removesuffix(".py").removesuffix("/") for name in re.findall(r"`([\w./]+)`", table)}
    assert named >= ROOMS
    assert sorted(room for level in levels() for room in level) == sorted(ROOMS)


def test_nothing_imports_what_is_above_it() -> None:
    height = {room: number for number, level in enumerate(levels()) for room in level}
    upwards = [
        f"{file.relative_to(SOURCE)} imports {other}"
        for file in sorted(SOURCE.rglob("*.py"))
        for other in imports(file)
        if (room := file.relative_to(SOURCE).parts[0].removesuffix(".py")) in height
        and other != room
        and height[other] >= height[room]
    ]
    assert not upwards, "\n".join(upwards)


def modules() -> dict[str, Path]:
    """Every file by the name that it is imported by."""
    paths = {file: file.relative_to(SOURCE.parent).with_suffix("").parts for file in SOURCE.rglob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): file for file, parts in paths.items()}


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


@pytest.mark.parametrize("folder", ["src", "tests", "tools", "benchmarks"])
def test_files_have_at_most_600_lines_and_functions_70(folder: str) -> None:
    large = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        large += [str(file)] if len(file.read_text(encoding="utf-8").splitlines()) > 600 else []
        for node in statements(file) if NIGHT or folder == "src" else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                large += [f"{file}: {node.name}"] if node.end_lineno - node.lineno >= 70 else []
    assert not large, "\n".join(large)
