"""Move modules, and rewrite everything that names them: imports, strings, docs, and the lists of planted faults.

::

    python tools/layout/move.py moves.toml                                 # old = "new", under [moves]
    python tools/layout/move.py marft.config.dyna=marft_lab.world_models.settings

A package moves with all that is in it. Run ``ruff check --fix`` and ``ruff format`` afterwards, to sort imports.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".toml", ".json", ".yml", ".sh", ".ipynb", ".txt", ".cfg", ".jinja", ""}
SKIPPED = {"CHANGELOG.md", "constraints.txt"}  # a record of the past, and no code
RENAMES = "renames.toml"  # its keys are names of the past


def read_moves(words: list[str]) -> dict[str, str]:
    """Return old and new names of modules, the longest first.

    Raises:
        ValueError: a word is neither a TOML file nor ``old=new``.
    """
    moves: dict[str, str] = {}
    for word in words:
        if word.endswith(".toml"):
            moves.update(tomllib.loads(Path(word).read_text(encoding="utf-8"))["moves"])
        elif "=" in word:
            old, _, new = word.partition("=")
            moves[old] = new
        else:
            raise ValueError(f"{word!r} must be a TOML file, or look like marft.old=marft.new")
    return dict(sorted(moves.items(), key=lambda move: -len(move[0])))


def path_of(module: str) -> Path:
    """Return the path of a module without a suffix, relative to the root of the repository."""
    package = module.partition(".")[0]
    return Path("packages", package.replace("_", "-"), "src", *module.split("."))


def move_files(moves: Mapping[str, str]) -> None:
    """Move files and folders with ``git mv``; two modules may swap names."""
    paths = {path_of(old).as_posix(): path_of(new).as_posix() for old, new in moves.items()}
    targets: dict[str, str] = {}
    for name in filter(None, _git("ls-files", "-z", "packages").split("\0")):
        for old in sorted(paths, key=len, reverse=True):
            if name == f"{old}.py" or name.startswith(f"{old}/"):
                targets[name] = paths[old] + name.removeprefix(old)
                break
    for name in targets:
        _git("mv", name, f"{name}.moving")
    for name, target in targets.items():
        _make_packages(Path(target).parent)
        (ROOT / target).unlink(missing_ok=True)  # an empty __init__.py made a moment ago
        _git("mv", "-f", f"{name}.moving", target)


def _make_packages(folder: Path) -> None:
    """Make a folder, and each above it a package, with an empty ``__init__.py`` where there is none."""
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    for package in [folder, *folder.parents][:-4]:
        if not (ROOT / package / "__init__.py").exists():
            (ROOT / package / "__init__.py").write_text("", encoding="utf-8")
            _git("add", str(package / "__init__.py"))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def rewritten(text: str, moves: Mapping[str, str], python: bool) -> str:
    """Return a file's text with new names for all modules that moved."""
    if python:
        text = _with_new_parents(text, moves)
    paths = {path_of(old).as_posix(): path_of(new).as_posix() for old, new in moves.items()}
    inner = {old.partition("/src/")[2]: new.partition("/src/")[2] for old, new in paths.items()}
    inner |= {
        old.removeprefix("marft/"): new.removeprefix("marft/") for old, new in inner.items()
    }  # as docs name the core
    text = _replaced(text, moves, r"(?<![\w./-])", r"(?!\w)")
    text = _replaced(text, paths, r"(?<![\w.-])", r"(?=\.py\b|/|\"|`|\))")
    return _replaced(text, inner, r"(?<=[\"`])", r"(?=\.py[\"`:])")


def with_new_values(table: str, moves: Mapping[str, str]) -> str:
    """Return the table of renames with new names for all modules that moved, and the keys as they are."""
    return re.sub(r"(?<= = ).+", lambda value: rewritten(value[0], moves, python=False), table)


def _replaced(text: str, table: Mapping[str, str], before: str, after: str) -> str:
    """Replace all names of a table in one pass, so that no new name is taken for an old one."""
    names = "|".join(map(re.escape, sorted(table, key=len, reverse=True)))
    return re.sub(f"{before}({names}){after}", lambda found: table[found[1]], text)


def _with_new_parents(text: str, moves: Mapping[str, str]) -> str:
    """Rewrite ``from package import module`` where the module moved; it keeps its name in the file."""
    lines = text.splitlines(keepends=True)
    for node in sorted(_from_imports(text), key=lambda node: -node.lineno):
        moved = {alias.name: moves[name] for alias in node.names if (name := f"{node.module}.{alias.name}") in moves}
        if not moved:
            continue
        indent = " " * node.col_offset
        stays = [alias for alias in node.names if alias.name not in moved]
        written = [f"{indent}from {node.module} import {', '.join(map(_written, stays))}\n"] if stays else []
        for alias in node.names:
            if alias.name in moved:
                parent, _, name = moved[alias.name].rpartition(".")
                known_as = alias.asname or alias.name
                written.append(
                    f"{indent}from {parent} import {name}" + (f" as {known_as}\n" if known_as != name else "\n")
                )
        lines[node.lineno - 1 : node.end_lineno] = written
    return "".join(lines)


def _from_imports(text: str) -> Iterator[ast.ImportFrom]:
    yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module)


def _written(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def main() -> None:
    """Move, and rewrite every file that git tracks."""
    moves = read_moves(sys.argv[1:])
    move_files(moves)
    changed = 0
    for name in filter(None, _git("ls-files", "-z").split("\0")):
        file = ROOT / name
        if file.suffix not in SUFFIXES or file.name in SKIPPED or "results" in file.parts or not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        new = with_new_values(text, moves) if file.name == RENAMES else rewritten(text, moves, file.suffix == ".py")
        if new != text:
            file.write_text(new, encoding="utf-8")
            changed += 1
    print(f"moved {len(moves)} modules; rewrote {changed} files")


if __name__ == "__main__":
    main()
