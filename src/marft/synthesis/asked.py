"""What a command or a call says of a recipe's ``[synthesis]``."""

from __future__ import annotations

from pathlib import Path

SCRIPTS = "scripts"  # the environment's own, as a teacher


def changes_of(teacher: str) -> dict[str, object]:
    """Changes of a recipe, by key. A folder or a file is named by where it lies, wherever one goes on from; one that is
    called like the scripts as ``./scripts``."""
    if not teacher:
        return {}
    there = teacher != SCRIPTS and Path(teacher).exists()
    return {"synthesis.teacher": str(Path(teacher).resolve()) if there else teacher}
