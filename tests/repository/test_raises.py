"""Sections ``Raises:`` of docstrings name exceptions that exist."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterator

from tests.sources import source_files

ENTRY = re.compile(r"^    (\w+(?:, \w+)*):", re.MULTILINE)


def raised_names(tree: ast.Module) -> Iterator[str]:
    """Names before the colons of a section; an entry may have several."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            section = inspect.cleandoc(ast.get_docstring(node) or "").partition("\nRaises:\n")[2]
            for names in ENTRY.findall(re.split(r"\n(?=\S)", section)[0]):
                yield from names.split(", ")


def test_every_exception_in_a_docstring_is_built_in_imported_or_a_class_of_the_packages() -> None:
    trees = {place: ast.parse(path.read_text(encoding="utf-8")) for place, path in source_files(".py").items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    known = {*dir(builtins)} | {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    known |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert [(place, name) for place, tree in trees.items() for name in raised_names(tree) if name not in known] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    tree = ast.parse(
        'def f():\n    """Do.\n\n    Raises:\n        GoneError, KeyError: why.\n            More.\n    """'
    )
    assert list(raised_names(tree)) == ["GoneError", "KeyError"]
