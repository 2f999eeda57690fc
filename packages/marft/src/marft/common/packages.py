"""The packages of this project, the names that installed packages register, and the extra that installs each name.

``packages.json`` beside this file is the only place where the core knows its satellites. It is generated from
``packages/*/pyproject.toml`` by ``python tools/layout/satellites.py``. Importing this module imports nothing but the
standard library: ``marft --help`` reads it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from marft.common.version import __version__

CORE = "marft"  # its distribution


class PackageIndex(NamedTuple):
    """Distributions, and the extra that brings each plugin: the contents of ``packages.json``."""

    import_names: Mapping[str, str]  # import name of each distribution of this project
    extras: Mapping[str, list[str]]  # the distributions that each extra of ``marft[…]`` installs, with their own extras
    plugin_extras: Mapping[str, Mapping[str, str]]  # kind of entry point → name → extra


@cache
def package_index() -> PackageIndex:
    """Read ``packages.json``."""
    return PackageIndex(**json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")))


def extra_for(kind: str, name: str) -> str:
    """Return the extra that installs a name of an entry-point group ``marft.<kind>``; "" where no satellite adds it.

    >>> extra_for("commands", "serve"), extra_for("sections", "dyna"), extra_for("sections", "model")
    ('serve', 'lab', '')
    """
    return package_index().plugin_extras.get(kind, {}).get(name, "")


def missing_extra(kind: str, name: str) -> str:
    """Return why a name that a satellite adds is missing, and the command that installs it; "" for other names."""
    extra = extra_for(kind, name)
    return f"{name!r} comes with marft[{extra}], which is not installed: {install_command(extra)}" if extra else ""


@lru_cache(maxsize=512)  # reading a distribution's metadata takes milliseconds
def version_problem(point: EntryPoint) -> str:
    """Return why an entry point of a satellite does not fit this version of the core; "" where it fits."""
    if point.dist is None or point.dist.metadata["Name"] not in package_index().import_names:
        return ""
    name, version = point.dist.metadata["Name"], point.dist.version
    if version == __version__:
        return ""
    return f"{name} {version} does not fit marft {__version__}: install both in one version"


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for the way in which MARFT is installed.

    Installed from a checkout, the command names folders of packages. Installed from wheels, it names their folder, or
    asks for it where pip recorded none: no index has MARFT.
    """
    origin, is_editable = _install_origin()
    if extra not in package_index().extras:  # of a package that is not of this project
        return f"pip install {quote(f'{CORE}[{extra}]')}"
    if origin is None or origin.suffix == ".whl":
        wheel_folder = quote(str(origin.parent)) if origin else "<the folder of MARFT's wheels>"
        return f"pip install --find-links {wheel_folder} {quote(f'{CORE}[{extra}]')}"
    option = "--editable " if is_editable else ""
    package_folders = [str(origin.parent / name) for name in package_index().extras[extra]]
    return f"pip install {' '.join(option + quote(folder) for folder in package_folders)}"


def _install_origin() -> tuple[Path | None, bool]:
    """Return the folder or wheel file that the core was installed from, and whether the installation is editable.

    The path is None where pip recorded none: it found the core with ``--find-links``.
    """
    try:
        text = distribution(CORE).read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    table = json.loads(text) if text else {}
    url = urlsplit(table.get("url", ""))
    if url.scheme != "file":
        return None, False
    return Path(unquote(url.path)), bool(table.get("dir_info", {}).get("editable"))


def registered_entry_points(kind: str) -> Mapping[str, EntryPoint]:
    """Return the entry points under ``marft.<kind>``, by name. MARFT's own entry points take precedence."""
    return _entry_points_by_name(f"marft.{kind}", tuple(sys.path))


def bundled_plugins(kind: str) -> list[str]:
    """Return the names registered by MARFT itself for ``kind``."""
    return sorted(name for name, point in registered_entry_points(kind).items() if _is_first_party(point))


@lru_cache(maxsize=256)
def _entry_points_by_name(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:  # noqa: ARG001
    """Return a group's entry points for the module search ``path``."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point.name not in points or _is_first_party(point):
            points[point.name] = point
    return points


def _is_first_party(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.metadata["Name"] in package_index().import_names


def is_first_party(module: str) -> bool:
    """Return True if a module, by its full name, belongs to this project.

    >>> [is_first_party(module) for module in ("marft.common.types", "marft", "marftish.types", "my_team")]
    [True, True, False, False]
    """
    return module.partition(".")[0] in package_index().import_names.values()


@cache
def first_party_folders() -> tuple[Path, ...]:
    """Return the folders of this project's installed packages."""
    specs = [spec for spec in map(find_spec, sorted(package_index().import_names.values())) if spec]
    return tuple(Path(folder) for spec in specs for folder in spec.submodule_search_locations or ())


def is_first_party_file(path: str | Path) -> bool:
    """Return True for files in one of this project's packages."""
    return any(Path(path).is_relative_to(folder) for folder in first_party_folders())
