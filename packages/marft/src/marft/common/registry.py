"""Names registered by installed packages under MARFT's entry-point groups, such as ``marft.environments``.

This module imports the standard library only, because ``marft --help`` reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from marft.common.packages import package_index


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
    return point.dist is not None and point.dist.metadata["Name"] in package_index().packages
