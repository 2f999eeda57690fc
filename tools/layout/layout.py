"""Hold the code to its layout: rooms of the core, each importing those before it, and satellites after them.

::

    python tools/layout/layout.py            # lines of each room, and the imports that point the wrong way
    python tools/layout/layout.py --closure  # modules and lines that the training loop imports

An import counts wherever it stands: at the top of a module, in a function, or under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src"))
ROOMS = (
    "common",
    "config",
    "models",
    "agents",
    "inference",
    "rewards",
    "envs",
    "runs",
    "rollout",
    "evaluation",
    "trainer",
    "cli",
)
TOP = "cli"  # where modules are that stand beside the rooms: the Python API, examples
SATELLITES = ("marft_envs", "marft_serve", "marft_lab")
ORDER = (*ROOMS, *SATELLITES)
LOOP = "marft.trainer.loop"
TEXT = re.compile(r"[\"'](marft(?:_\w+)?\.[\w.]+(?::\w+)?)[\"']")


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """One name that a module imports from another module of the project.

    Args:
        typing_only: the import stands under ``TYPE_CHECKING``.
        text: the name is only in a string, such as the import path of a plugin.
    """

    importer: str
    imported: str
    name: str
    typing_only: bool = False
    text: bool = False

    def __str__(self) -> str:
        return f"{self.importer} → {self.imported}: {self.name}"


@cache
def modules() -> Mapping[str, Path]:
    """Return the file of each module, by its name."""
    paths = {
        file: file.relative_to(source).with_suffix("").parts for source in SOURCES for file in source.rglob("*.py")
    }
    return {".".join(parts).removesuffix(".__init__"): file for file, parts in paths.items()}


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def _module_of(name: str) -> str:
    """Return the module that a dotted name is, or is in; "" for a name of another package."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


@cache
def imports() -> tuple[Import, ...]:
    """Return every import between modules of the project."""
    return tuple(sorted({found for name, file in modules().items() for found in _imports_of(name, file)}))


def _imports_of(importer: str, file: Path) -> Iterator[Import]:
    for node, typing_only in _statements(tree_of(file)):
        for imported, name in _names_in(node):
            if imported and imported != importer:
                yield Import(importer, imported, name, typing_only)
    for name in TEXT.findall(file.read_text(encoding="utf-8")):
        module = name.partition(":")[0]
        if ":" in name or module in modules():
            yield Import(importer, _module_of(module), name, text=True)


def _statements(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each statement, and whether it stands under ``TYPE_CHECKING``. Expressions hold no statements."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, typing_only = waiting.pop()
        yield node, typing_only
        typing_only = typing_only or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        parts = ("body", "handlers", "cases", "orelse", "finalbody")
        waiting += [(child, typing_only) for part in parts for child in getattr(node, part, ())]


def _names_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import in a statement."""
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            yield _module_of(f"{node.module}.{alias.name}"), alias.name
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield _module_of(alias.name), alias.name


def place_of(module: str) -> str:
    """Return the room of a module of the core, or the satellite that it is in.

    >>> modules = ("marft.trainer.loop", "marft_lab.flows.tuning", "marft", "marft.examples.demo")
    >>> [place_of(module) for module in modules]
    ['trainer', 'marft_lab', 'cli', 'cli']
    """
    package, _, rest = module.partition(".")
    if package != "marft":
        return package
    room = rest.partition(".")[0]
    return room if room in ROOMS else TOP


def wrong_way() -> list[Import]:
    """Return the imports from a room to one after it. Names in strings, such as those of plugins, do not count."""
    height = {place: number for number, place in enumerate(ORDER)}
    return [
        found
        for found in imports()
        if not found.text and height[place_of(found.imported)] > height[place_of(found.importer)]
    ]


def code_lines(file: Path) -> int:
    """Return the number of lines that hold code: no blanks, comments or docstrings."""
    text = file.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def closure(module: str = LOOP) -> set[str]:
    """Return every module that one imports when it runs: in functions and by string too, for typing alone not."""
    direct: dict[str, set[str]] = {}
    for found in imports():
        if not found.typing_only:
            direct.setdefault(found.importer, set()).add(found.imported)
    reached, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += direct.get(name, ())
    return reached


def main() -> None:
    """Print what the layout comes to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--closure", action="store_true", help="what the training loop imports")
    if parser.parse_args().closure:
        reached = closure()
        lines = sum(len(modules()[name].read_text(encoding="utf-8").splitlines()) for name in reached)
        direct = {found.imported for found in imports() if found.importer == LOOP and not found.typing_only}
        print(f"{LOOP} imports {len(direct)} modules itself, and {len(reached)} with theirs, of {lines:,} lines")
        return
    wrong = wrong_way()
    counts: Counter[str] = Counter()
    for name, file in modules().items():
        counts[place_of(name)] += code_lines(file)
    for place in ORDER:
        print(f"{place:12} {counts[place]:7,} lines of code")
    print(f"{'the core':12} {sum(counts[place] for place in ROOMS):7,}")
    print(f"\n{len(wrong)} imports point the wrong way")
    for found in wrong:
        print(f"  {place_of(found.importer)} → {place_of(found.imported)}: {found}")


if __name__ == "__main__":
    main()
