"""The agents of a run in another team, as Python asks for it."""

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
    """A run in the team that is asked for → and what of it is another than it was trained as.

    Args:
        run: with what was changed by settings.
        folder: of a run that was trained; None: the recipe is all there is.
        into: a file, or its tables and a ``name``.

    Raises:
        ValueError: there is no such team, it cannot play, or is the one that there is.
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
