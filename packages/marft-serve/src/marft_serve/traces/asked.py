"""What a command or a call says of the recipe's ``[sft]``: which traces, and whose turns they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from marft.config.run import RunSettings
from marft_serve.traces.roles import check_roles
from marft_serve.traces.rows import rows_in
from marft_serve.traces.settings import SftSettings


def changes_of(run: RunSettings, traces: Sequence[Path], roles: Mapping[str, str]) -> dict[str, object]:
    """Changes of a recipe, by key.

    Args:
        roles: of this recipe, by the names that they have in the traces.

    Raises:
        ValueError: a file is not there, or a role is none.
    """
    for path in traces:
        if not path.is_file() and rows_in(path) is None:
            raise ValueError(f"--from {path}: there is no such file, and no folder of rows")
    check_roles(roles, [agent.role for agent in run.agents])
    changes: dict[str, object] = {}
    if traces:
        changes["sft.traces"] = [str(path.resolve()) for path in traces]
    if roles:
        changes["sft.roles"] = {**SftSettings.of(run).roles, **roles}
    return changes
