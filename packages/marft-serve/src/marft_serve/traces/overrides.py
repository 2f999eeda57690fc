"""Overrides of the recipe's ``[sft]`` section from a command or a call: trace files and role names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from marft.config.run import RunSettings
from marft_serve.traces.roles import check_roles
from marft_serve.traces.rows import find_rows
from marft_serve.traces.settings import SftSettings


def build_overrides(run: RunSettings, traces: Sequence[Path], roles: Mapping[str, str]) -> dict[str, object]:
    """Return recipe overrides by key.

    Args:
        run: the recipe.
        traces: files of traces, or folders of rows.
        roles: the recipe's role for each agent name in the traces.

    Raises:
        ValueError: a file does not exist, or the recipe has no agent with a given role.
    """
    for path in traces:
        if not path.is_file() and find_rows(path) is None:
            raise ValueError(f"--traces {path}: there is no such file, and no folder of rows")
    check_roles(roles, [agent.role for agent in run.agents])
    overrides: dict[str, object] = {}
    if traces:
        overrides["sft.traces"] = [str(path.resolve()) for path in traces]
    if roles:
        overrides["sft.roles"] = {**SftSettings.from_run(run).roles, **roles}
    return overrides
