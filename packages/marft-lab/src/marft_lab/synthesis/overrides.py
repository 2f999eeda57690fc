"""Overrides of a recipe's ``[synthesis]`` from command-line options or API arguments."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from marft.common.errors import UserError
from marft.config.bundled import bundled_names
from marft.config.load import suggest_recipe

SCRIPTS = "scripts"  # name of the environment's own scripts as teacher


def teacher_overrides(teacher: str) -> dict[str, object]:
    """Return the overrides of a recipe, by key.

    Existing files and folders become absolute paths, for a later resume from anywhere. A path named like the scripts is
    written ``./scripts``.
    """
    if not teacher:
        return {}
    exists = teacher != SCRIPTS and Path(teacher).exists()
    return {"synthesis.teacher": str(Path(teacher).resolve()) if exists else teacher}


def check_teacher(teacher: str) -> None:
    """Check that a teacher exists.

    Raises:
        UserError: unknown teacher.
    """
    if not teacher or teacher == SCRIPTS or Path(teacher).exists() or teacher in bundled_names():
        return
    hint = f"; did you mean {SCRIPTS!r}?" if get_close_matches(teacher, [SCRIPTS]) else suggest_recipe(Path(teacher))
    raise UserError(f"--teacher {teacher}: no run, checkpoint, export or recipe is there{hint}")
