"""Overrides of a recipe's ``[synthesis]`` from command-line options or API arguments."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from marft.config.bundled import bundled_names
from marft.config.load import near

SCRIPTS = "scripts"  # name of the environment's own scripts as teacher


def changes_of(teacher: str) -> dict[str, object]:
    """Return the overrides of a recipe, by key.

    Existing files and folders become absolute paths, for a later resume from anywhere. A path named like the scripts is
    written ``./scripts``.
    """
    if not teacher:
        return {}
    there = teacher != SCRIPTS and Path(teacher).exists()
    return {"synthesis.teacher": str(Path(teacher).resolve()) if there else teacher}


def check_teacher(named: str) -> None:
    """Check that a teacher exists.

    Raises:
        ValueError: unknown teacher.
    """
    if not named or named == SCRIPTS or Path(named).exists() or named in bundled_names():
        return
    hint = f"; did you mean {SCRIPTS!r}?" if get_close_matches(named, [SCRIPTS]) else near(Path(named))
    raise ValueError(f"--teacher {named}: no run, checkpoint, export or recipe is there{hint}")
