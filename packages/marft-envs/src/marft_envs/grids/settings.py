"""Shared settings checks for grid environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from marft.config.settings import did_you_mean


def find_unknown_roles(roles_by_key: Mapping[str, Sequence[str]], roles: Sequence[str]) -> Iterable[str]:
    """Yield an error for each unknown role, given the role names by key."""
    for key, names in roles_by_key.items():
        for name in names:
            if name not in roles:
                yield f"environment.{key}: no agent has the role {name!r}{did_you_mean(name, roles)}"
