"""The packages of this project, and the extra that installs each name that they add.

``packages.json`` beside this file is the only place where the core knows its satellites. It is generated from
``packages/*/pyproject.toml`` by ``python tools/layout/satellites.py``. Importing this module imports nothing but the
standard library: ``marft --help`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from pathlib import Path
from shlex import quote
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from marft.common.version import __version__

CORE = "marft"  # its distribution


class PackageIndex(NamedTuple):
    """The contents of ``packages.json``."""

    packages: Mapping[str, str]  # import name of each distribution of this project
    extras: Mapping[str, list[str]]  # the distributions that each extra of ``marft[…]`` installs, with their own extras
    names: Mapping[str, Mapping[str, str]]  # kind of entry point → name → extra


@cache
def package_index() -> PackageIndex:
    """Read ``packages.json``."""
    return PackageIndex(**json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")))


def extra_for(kind: str, name: str) -> str:
    """Return the extra that installs a name of an entry-point group ``marft.<kind>``; "" where no satellite adds it.

    >>> extra_for("commands", "serve"), extra_for("sections", "dyna"), extra_for("sections", "model")
    ('serve', 'lab', '')
    """
    return package_index().names.get(kind, {}).get(name, "")


def missing_extra(kind: str, name: str) -> str:
    """Return why a name that a satellite adds is missing, and the command that installs it; "" for other names."""
    extra = extra_for(kind, name)
    return f"{name!r} comes with marft[{extra}], which is not installed: {install_command(extra)}" if extra else ""


@lru_cache(maxsize=512)  # reading a distribution's metadata takes milliseconds
def version_problem(point: EntryPoint) -> str:
    """Return why an entry point of a satellite does not fit this version of the core; "" where it fits."""
    if point.dist is None or point.dist.metadata["Name"] not in package_index().packages:
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
    return Path(url2pathname(url.path)), bool(table.get("dir_info", {}).get("editable"))
