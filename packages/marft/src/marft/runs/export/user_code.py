"""User code for an exported team: files and imported packages."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions, version
from pathlib import Path

from marft.common.first_party import first_party_folders, is_first_party


def find_import_root(module: str) -> Path | None:
    """Return the import folder for a user module. The result is None for an installed package."""
    loaded = sys.modules.get(module)
    if loaded is None or not loaded.__file__:
        return None
    file = Path(loaded.__file__).resolve()
    if any(file.is_relative_to(folder) for folder in _installed_folders()):
        return None
    return file.parents[len(module.split(".")) - (0 if file.name == "__init__.py" else 1)]


def find_module_files(modules: Sequence[str], root: Path) -> tuple[dict[str, Path], set[str]]:
    """Return the files for modules and local imports, and the names of other imported packages.

    Files are keyed by their path relative to ``root``. Packages are top-level names without the standard library and
    MARFT.
    """
    files: dict[str, Path] = {}
    packages: set[str] = set()
    pending = list(modules)
    visited: set[str] = set()
    while pending:
        module = pending.pop()
        if module in visited:
            continue
        visited.add(module)
        file = _find_file(module, root)
        if file is None:
            parent = module.rpartition(".")[0]
            pending += [parent] if parent else []
            packages |= set() if parent else {module}
            continue
        files[file.relative_to(root).as_posix()] = file
        parts = module.split(".")
        pending += [".".join(parts[:count]) for count in range(1, len(parts))]
        pending += find_imports(file, module)
    return dict(sorted(files.items())), {
        name for name in packages if name not in sys.stdlib_module_names and not is_first_party(name)
    }


def find_script_files(scripts: Sequence[Path], root: Path) -> tuple[dict[str, Path], set[str]]:
    """Return the files for scripts and their imports.

    The result has the form of :func:`find_module_files`. A script imports modules from its own folder.
    """
    script_files, packages = dict[str, Path](), set[str]()
    for script in scripts:
        script_files[script.relative_to(root).as_posix()] = script
        if script.suffix == ".py":
            files, imported_packages = find_module_files(list(find_imports(script, "")), script.parent)
            script_files |= {path.relative_to(root).as_posix(): path for path in files.values()}
            packages |= imported_packages
    return script_files, packages


def find_imports(file: Path, module: str) -> Iterator[str]:
    """Yield a file's imports: modules, and names that may be modules.

    Args:
        module: name of the file's module, the start of relative imports.
    """
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            yield from [base] if base else []
            yield from (f"{base}.{alias.name}".removeprefix(".") for alias in node.names if alias.name != "*")


def find_versions(packages: set[str]) -> dict[str, str]:
    """Return installed distributions and versions for the given packages."""
    distributions = packages_distributions()
    return {name: version(name) for package in sorted(packages) for name in distributions.get(package, [])[:1]}


def _find_file(module: str, root: Path) -> Path | None:
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _installed_folders() -> Iterator[Path]:
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name)).resolve()
    yield from (folder.resolve() for folder in first_party_folders())
