"""Roles for the agent names in traces, and the recipe's ``[sft]`` overrides from a command or a call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from marft.common.errors import UserError
from marft.config.run import RunSettings
from marft.config.settings import did_you_mean
from marft_serve.traces.reader import find_rows
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.types import DEFAULT_AGENT_NAME


def parse_roles(options: Iterable[str], roles: Sequence[str]) -> dict[str, str]:
    """Parse ``--role "name in the traces=role"`` values into roles by name.

    >>> parse_roles(["Plan node=planner"], ["planner", "coder"])
    {'Plan node': 'planner'}

    Raises:
        UserError: a value has a different form, or the recipe has no such role.
    """
    explicit: dict[str, str] = {}
    for option in options:
        name, equals, role = option.rpartition("=")
        if not equals or not name.strip():
            raise UserError(f'--role {option!r} is not written as "name in the traces=role"')
        explicit[name.strip()] = role.strip()
    check_roles(explicit, roles)
    return explicit


def check_roles(explicit: Mapping[str, str], roles: Sequence[str]) -> None:
    """Check the given roles against the recipe.

    Raises:
        UserError: the recipe has no such role.
    """
    for name, role in explicit.items():
        if role not in roles:
            raise UserError(f'--role "{name}={role}": the recipe has no agent {role!r}{did_you_mean(role, roles)}')


class RoleMapping:
    """Mapping from names to roles.

    Precedence: the given role; the role with the same name; a role that differs only in case, spaces and
    punctuation. If the recipe has a single agent, that agent also gets turns without a name.

    Args:
        roles: roles of the recipe.
        explicit: roles by name.
    """

    def __init__(self, roles: Sequence[str], explicit: Mapping[str, str]) -> None:
        self.roles, self.explicit = roles, explicit
        self.used: set[str] = set()  # given names found in the traces
        self._normalized = {_normalize(role): role for role in reversed(roles)}

    def find_role(self, names: Sequence[str]) -> str:
        """Return the role for an agent's names, listed from the innermost; "" without a match."""
        for name in names:
            if name in self.explicit:
                self.used.add(name)
                return self.explicit[name]
        for name in names:
            if name in self.roles:
                return name
        role = next((self._normalized[_normalize(name)] for name in names if _normalize(name) in self._normalized), "")
        return role or (self.roles[0] if len(self.roles) == 1 and names[0] == DEFAULT_AGENT_NAME else "")

    def format_unknown(self, names: Sequence[str]) -> str:
        """Return the reason for skipping turns by an agent with these names."""
        name = names[0]
        return f'the recipe has no agent {name!r}{did_you_mean(name, self.roles)}; say whose it is: --role "{name}=…"'

    def unused_names(self) -> list[str]:
        """Return given names without any turn."""
        return sorted(set(self.explicit) - self.used)


def _normalize(name: str) -> str:
    """Normalize a name for comparison.

    >>> _normalize("The Planner_1")
    'theplanner1'
    """
    return re.sub(r"[\W_]+", "", name).casefold()


def build_overrides(run: RunSettings, traces: Sequence[Path], roles: Mapping[str, str]) -> dict[str, object]:
    """Return recipe overrides by key.

    Args:
        run: the recipe.
        traces: files of traces, or folders of rows.
        roles: the recipe's role for each agent name in the traces.

    Raises:
        UserError: a file does not exist, or the recipe has no agent with a given role.
    """
    for path in traces:
        if not path.is_file() and find_rows(path) is None:
            raise UserError(f"--traces {path}: there is no such file, and no folder of rows")
    check_roles(roles, [agent.role for agent in run.agents])
    overrides: dict[str, object] = {}
    if traces:
        overrides["sft.traces"] = [str(path.resolve()) for path in traces]
    if roles:
        overrides["sft.roles"] = {**SftSettings.from_run(run).roles, **roles}
    return overrides
