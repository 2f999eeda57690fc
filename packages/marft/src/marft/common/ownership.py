"""Whose code something is: that of this project, in whichever of its packages, or somebody else's.

Importing this module imports nothing but the standard library.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("marft", "marft_envs", "marft_serve", "marft_lab")


def is_ours(module: str) -> bool:
    """Return whether a module, by its full name, belongs to this project.

    >>> [is_ours(module) for module in ("marft.common.types", "marft_lab", "marftish.types", "my_team")]
    [True, True, False, False]
    """
    return module.partition(".")[0] in PACKAGES


@cache
def our_folders() -> tuple[Path, ...]:
    """Return the folders of the packages that are installed."""
    found = [spec for spec in map(find_spec, PACKAGES) if spec]
    return tuple(Path(folder) for spec in found for folder in spec.submodule_search_locations or ())


def is_our_file(path: str | Path) -> bool:
    """Return whether a file lies in one of the packages."""
    return any(Path(path).is_relative_to(folder) for folder in our_folders())
