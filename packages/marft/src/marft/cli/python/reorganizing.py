"""Team changes in the Python API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marft.cli.python.asked import is_path
from marft.config.reorganizing import Reorganization, changes_of_team, read_reorganization, reorganized
from marft.config.run import RunSettings
from marft.runs.folder import RunFolder


def in_another_team(
    run: RunSettings, folder: RunFolder | None, into: str | Path | Mapping[str, Any] | None
) -> tuple[RunSettings, dict[str, Any]]:
    """Return the run in the requested team, and its differences to the trained team.

    Args:
        run: settings with the changes applied.
        folder: folder of a trained run; None for a recipe.
        into: file of a team change, or its tables with a ``name``; None: no change.

    Raises:
        ValueError: the team change is missing or invalid, or has no effect.
    """
    trained = folder.settings_in_place(given=run.given.values()) if folder else run
    plan = None
    if isinstance(into, Mapping):
        if not isinstance(into.get("name"), str):
            raise ValueError("reorganized: tables have a name, which evaluations bear: {'name': 'tree', 'team': …}")
        plan = Reorganization(into["name"], {key: value for key, value in into.items() if key != "name"})
    elif into is not None:
        if not is_path(into):
            raise ValueError(f"reorganized is a file or its tables, and this is of type {type(into).__name__}")
        plan = read_reorganization(into)
    played = reorganized(run, plan) if plan else run
    return played, changes_of_team(trained, played, plan)
