"""Where faults are put: the mutants of a source file, each under a name that unrelated edits leave alone.

Left out, because nothing that runs depends on it: docstrings, annotations (the bounds in ``Annotated`` with them),
decorators, bases of classes, assertions (``strict`` of zip is one), descriptions of settings, what is imported for
typing alone, and the texts of errors and f-strings.
"""

from __future__ import annotations

import ast
import copy
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from operators import IGNORED_KEYWORDS, replacements

SKIPPED_FIELDS: dict[type[ast.AST], set[str]] = {
    ast.FunctionDef: {"decorator_list", "returns"}, ast.AsyncFunctionDef: {"decorator_list", "returns"},
    ast.ClassDef: {"decorator_list", "bases", "keywords"}, ast.AnnAssign: {"annotation"}, ast.arg: {"annotation"},
    ast.Raise: {"exc", "cause"},
}  # fmt: skip
SKIPPED = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
Path_ = tuple[tuple[str, int | None], ...]  # fields and places in them, from the root of a tree


@dataclass(frozen=True)
class Mutant:
    """One fault in one file.

    Its name is made of the file, the function, the text of the statement's first line without its comment, and the
    change; ``number`` tells apart those that are alike even so.
    """

    file: str
    function: str  # qualified name; "" outside of any function
    line: str
    change: str
    number: int
    lineno: int
    lines: range  # of the statement that holds it; of a compound statement, its head
    where: Path_
    replacement: ast.AST | None
    source: Source

    @property
    def name(self) -> str:
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.file} | {self.function} | {self.line} | {self.change}{again}"

    def tree(self) -> ast.Module:
        """The file's tree with the fault in it."""
        return _edited(self.source.tree, self.where, self.replacement)


class Source:
    """A source file: its text, and the tree that mutants are edits of."""

    def __init__(self, root: Path, file: str) -> None:
        self.path, self.file = root / file, file
        self.text = self.path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.lines = self.text.splitlines()

    @cached_property
    def _comments(self) -> dict[int, int]:
        """Columns at which comments begin, by line."""
        tokens = tokenize.generate_tokens(StringIO(self.text).readline)
        return dict(token.start for token in tokens if token.type == tokenize.COMMENT)

    @cached_property
    def mutants(self) -> list[Mutant]:
        """In the order of the text."""
        seen: Counter[tuple[str, str, str]] = Counter()
        found = []
        for node, where, function, line, lines in _walk(self.tree):
            text = self.lines[line - 1][: self._comments.get(line)].strip()
            for replacement in replacements(node):
                change = f"{_text(node)} → {_text(replacement)}"
                seen[function, text, change] += 1
                number = seen[function, text, change]
                found.append(Mutant(self.file, function, text, change, number, line, lines, where, replacement, self))
        return found


def _text(node: ast.AST | None) -> str:
    """A node as code; of a compound statement its head alone."""
    if node is None:
        return "(removed)"
    if isinstance(node, ast.comprehension):
        return ast.unparse(node).strip()
    if isinstance(node, (ast.If, ast.While)):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    if isinstance(node, ast.For):
        return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
    if isinstance(node, ast.Slice):
        return f"[{ast.unparse(node)}]"
    return ast.unparse(node)


def _walk(
    node: ast.AST, where: Path_ = (), function: str = "", scope: tuple[str, ...] = (), line: int = 1,
    lines: range = range(0),
) -> Iterator[tuple[ast.AST, Path_, str, int, range]]:  # fmt: skip
    """Every node that may be changed: with its place, the outermost function around it, its line, and those of its
    statement."""
    if _means_nothing(node):
        return
    line = getattr(node, "lineno", line)
    lines = _head(node) if isinstance(node, ast.stmt) else lines
    yield node, where, function, line, lines
    inside = scope
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        inside = (*scope, node.name)
    skipped = SKIPPED_FIELDS.get(type(node), set())
    for field, value in ast.iter_fields(node):
        if field in skipped:
            continue
        here = function or (".".join(inside) if is_function and field == "body" else "")  # defaults belong outside
        children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for place, child in children:
            if isinstance(child, ast.AST):
                yield from _walk(child, (*where, (field, place)), here, inside, line, lines)


def _head(node: ast.stmt) -> range:
    """The lines of a statement, without those of its body."""
    body: list[ast.stmt] = getattr(node, "body", [])
    end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return range(node.lineno, max(end, node.lineno) + 1)


def _means_nothing(node: ast.AST) -> bool:
    if isinstance(node, SKIPPED):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring, or the dots of a protocol
    if isinstance(node, ast.keyword) and node.arg in IGNORED_KEYWORDS:
        return True
    if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in ("Annotated", "Literal"):
        return True
    if isinstance(node, ast.Assign) and any(getattr(t, "id", "") in ("__slots__", "__all__") for t in node.targets):
        return True
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def _edited(tree: ast.Module, where: Path_, replacement: ast.AST | None) -> ast.Module:
    """A copy of the tree with another node at a place; everything that is not on the way there is shared."""
    root = copy.copy(tree)
    parent: Any = root
    for depth, (field, place) in enumerate(where):
        held = getattr(parent, field)
        old = held if place is None else held[place]
        if depth < len(where) - 1:
            new = copy.copy(old)
        else:
            new = ast.Pass() if replacement is None else copy.deepcopy(replacement)
            for node in ast.walk(new):
                if not hasattr(node, "lineno"):
                    ast.copy_location(node, old)
            ast.copy_location(new, old)
        if place is None:
            setattr(parent, field, new)
        else:
            setattr(parent, field, [*held[:place], new, *held[place + 1 :]])
        parent = new
    return ast.fix_missing_locations(root)
