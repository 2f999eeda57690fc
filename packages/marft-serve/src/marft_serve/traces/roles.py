"""Mapping from agent names in traces to the roles of a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from marft.config.settings import did_you_mean
from marft_serve.traces.record import UNNAMED


def given_roles(words: Iterable[str], roles: Sequence[str]) -> dict[str, str]:
    """Parse ``--role "name in the traces=role"`` values into roles by name.

    >>> given_roles(["Plan node=planner"], ["planner", "coder"])
    {'Plan node': 'planner'}

    Raises:
        ValueError: a value has a different form, or the recipe has no such role.
    """
    given: dict[str, str] = {}
    for word in words:
        name, equals, role = word.rpartition("=")
        if not equals or not name.strip():
            raise ValueError(f'--role {word!r} is not written as "name in the traces=role"')
        given[name.strip()] = role.strip()
    check_roles(given, roles)
    return given


def check_roles(given: Mapping[str, str], roles: Sequence[str]) -> None:
    """Check the given roles against the recipe.

    Raises:
        ValueError: the recipe has no such role.
    """
    for name, role in given.items():
        if role not in roles:
            raise ValueError(f'--role "{name}={role}": the recipe has no agent {role!r}{did_you_mean(role, roles)}')


class Roles:
    """Mapping from names to roles.

    Precedence: the given role; the role with the same name; a role that differs only in case, spaces and
    punctuation. If the recipe has a single agent, that agent also gets turns without a name.

    Args:
        roles: roles of the recipe.
        given: roles by name.
    """

    def __init__(self, roles: Sequence[str], given: Mapping[str, str]) -> None:
        self.roles, self.given = roles, given
        self.used: set[str] = set()  # given names found in the traces
        self._alike = {_plain(role): role for role in reversed(roles)}

    def of(self, names: Sequence[str]) -> str:
        """Return the role for an agent's names, listed from the innermost; "" without a match."""
        for name in names:
            if name in self.given:
                self.used.add(name)
                return self.given[name]
        for name in names:
            if name in self.roles:
                return name
        found = next((self._alike[_plain(name)] for name in names if _plain(name) in self._alike), "")
        return found or (self.roles[0] if len(self.roles) == 1 and names[0] == UNNAMED else "")

    def unknown(self, names: Sequence[str]) -> str:
        """Return the reason for skipping turns by an agent with these names."""
        name = names[0]
        return f'the recipe has no agent {name!r}{did_you_mean(name, self.roles)}; say whose it is: --role "{name}=…"'

    def unused(self) -> list[str]:
        """Return given names without any turn."""
        return sorted(set(self.given) - self.used)


def _plain(name: str) -> str:
    """Normalize a name for comparison.

    >>> _plain("The Planner_1")
    'theplanner1'
    """
    return re.sub(r"[\W_]+", "", name).casefold()
