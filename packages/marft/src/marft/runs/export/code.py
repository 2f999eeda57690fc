"""User code for an exported team: files and imported packages."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions, version
from pathlib import Path

from marft.common.ownership import is_ours, our_folders


def root_of(module: str) -> Path | None:
    """Return the import folder for a user module. The result is None for an installed package."""
    loaded = sys.modules.get(module)
    if loaded is None or not loaded.__file__:
        return None
    file = Path(loaded.__file__).resolve()
    if any(file.is_relative_to(place) for place in _installed()):
        return None
    return file.parents[len(module.split(".")) - (0 if file.name == "__init__.py" else 1)]


def files_of(modules: Sequence[str], root: Path) -> tuple[dict[str, Path], set[str]]:
    """Return the files for modules and local imports, and the names of other imported packages.

    Files are keyed by their path relative to ``root``. Packages are top-level names without the standard library and
    MARFT.
    """
    found: dict[str, Path] = {}
    others: set[str] = set()
    waiting = list(modules)
    done: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in done:
            continue
        done.add(module)
        file = _file(module, root)
        if file is None:
            parent = module.rpartition(".")[0]
            waiting += [parent] if parent else []
            others |= set() if parent else {module}
            continue
        found[file.relative_to(root).as_posix()] = file
        parts = module.split(".")
        waiting += [".".join(parts[:count]) for count in range(1, len(parts))]
        waiting += imported(file, module)
    return dict(sorted(found.items())), {
        name for name in others if name not in sys.stdlib_module_names and not is_ours(name)
    }


def scripts_of(scripts: Sequence[Path], root: Path) -> tuple[dict[str, Path], set[str]]:
    """Return the files for scripts and their imports.

    The result has the form of :func:`files_of`. A script imports modules from its own folder.
    """
    found, others = dict[str, Path](), set[str]()
    for script in scripts:
        found[script.relative_to(root).as_posix()] = script
        if script.suffix == ".py":
            files, more = files_of(list(imported(script, "")), script.parent)
            found |= {path.relative_to(root).as_posix(): path for path in files.values()}
            others |= more
    return found, others


def imported(file: Path, module: str) -> Iterator[str]:
    """Yield a file's imports: modules, and names that may be modules.

    Args:
        module: name of the file's module, the start of relative imports.
    """
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from [base] if base else []
            yield from (f"{base}.{alias.name}".removeprefix(".") for alias in node.names if alias.name != "*")


def versions_of(packages: set[str]) -> dict[str, str]:
    """Return installed distributions and versions for the given packages."""
    known = packages_distributions()
    return {name: version(name) for package in sorted(packages) for name in known.get(package, [])[:1]}


def _file(module: str, root: Path) -> Path | None:
    place = root.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def _installed() -> Iterator[Path]:
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name)).resolve()
    yield from (folder.resolve() for folder in our_folders())
