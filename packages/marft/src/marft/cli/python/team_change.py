"""Team changes in the Python API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marft.cli.python.arguments import is_path
from marft.config.run import RunSettings
from marft.config.team_changes import TeamChange, apply_team_change, describe_team_change, read_team_change
from marft.runs.run_folder import RunFolder


def apply_team(
    run: RunSettings, folder: RunFolder | None, change: str | Path | Mapping[str, Any] | None
) -> tuple[RunSettings, dict[str, Any]]:
    """Return the run in the requested team, and its differences to the trained team.

    Args:
        run: settings with the changes applied.
        folder: folder of a trained run; None for a recipe.
        change: file of a team change, or its tables with a ``name``; None: no change.

    Raises:
        ValueError: the team change is missing or invalid, or has no effect.
    """
    trained = folder.relocated_settings(objects=run.python_objects.values()) if folder else run
    plan = None
    if isinstance(change, Mapping):
        if not isinstance(change.get("name"), str):
            raise ValueError("reorganized: tables have a name, which evaluations bear: {'name': 'tree', 'team': …}")
        plan = TeamChange(change["name"], {key: value for key, value in change.items() if key != "name"})
    elif change is not None:
        if not is_path(change):
            raise ValueError(f"reorganized is a file or its tables, and this is of type {type(change).__name__}")
        plan = read_team_change(change)
    evaluated = apply_team_change(run, plan) if plan else run
    return evaluated, describe_team_change(trained, evaluated, plan)
