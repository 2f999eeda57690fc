"""What a command or a call says of a recipe's ``[synthesis]``."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from marft.config.bundled import bundled_names
from marft.config.load import near

SCRIPTS = "scripts"  # the environment's own, as a teacher


def changes_of(teacher: str) -> dict[str, object]:
    """Changes of a recipe, by key. A folder or a file is named by where it lies, wherever one goes on from; one that is
    called like the scripts as ``./scripts``."""
    if not teacher:
        return {}
    there = teacher != SCRIPTS and Path(teacher).exists()
    return {"synthesis.teacher": str(Path(teacher).resolve()) if there else teacher}


def check_teacher(named: str) -> None:
    """
    Raises:
        ValueError: nobody is there by that name.
    """
    if not named or named == SCRIPTS or Path(named).exists() or named in bundled_names():
        return
    hint = f"; did you mean {SCRIPTS!r}?" if get_close_matches(named, [SCRIPTS]) else near(Path(named))
    raise ValueError(f"--teacher {named}: no run, checkpoint, export or recipe is there{hint}")
