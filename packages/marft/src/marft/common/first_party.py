"""First-party detection: code from MARFT's own packages versus all other code.

This module imports the standard library only.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from marft.common.packages import package_index

PACKAGES = frozenset(package_index().packages.values())  # import names


def is_first_party(module: str) -> bool:
    """Return True if a module, by its full name, belongs to this project.

    >>> [is_first_party(module) for module in ("marft.common.types", "marft", "marftish.types", "my_team")]
    [True, True, False, False]
    """
    return module.partition(".")[0] in PACKAGES


@cache
def first_party_folders() -> tuple[Path, ...]:
    """Return the folders of this project's installed packages."""
    specs = [spec for spec in map(find_spec, sorted(PACKAGES)) if spec]
    return tuple(Path(folder) for spec in specs for folder in spec.submodule_search_locations or ())


def is_first_party_file(path: str | Path) -> bool:
    """Return True for files in one of this project's packages."""
    return any(Path(path).is_relative_to(folder) for folder in first_party_folders())
