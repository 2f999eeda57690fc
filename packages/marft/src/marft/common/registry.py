"""Names registered by installed packages under MARFT's entry-point groups, such as ``marft.environments``.

This module imports the standard library only, because ``marft --help`` reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from marft.common.satellites import satellites


def registered(kind: str) -> Mapping[str, EntryPoint]:
    """Return the entry points under ``marft.<kind>``, by name. MARFT's own entry points take precedence."""
    return _by_name(f"marft.{kind}", tuple(sys.path))


def bundled_parts(kind: str) -> list[str]:
    """Return the names registered by MARFT itself for ``kind``."""
    return sorted(name for name, point in registered(kind).items() if _is_ours(point))


@lru_cache(maxsize=256)
def _by_name(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:  # noqa: ARG001
    """Return a group's entry points for the module search ``path``."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point.name not in found or _is_ours(point):
            found[point.name] = point
    return found


def _is_ours(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.metadata["Name"] in satellites().packages
