"""What a command or a call says of a recipe's ``[synthesis]``."""

from __future__ import annotations

from pathlib import Path


def changes_of(teacher: str) -> dict[str, object]:
    """Changes of a recipe, by key. A folder or a file is named by where it lies, wherever one goes on from."""
    if not teacher:
        return {}
    return {"synthesis.teacher": str(Path(teacher).resolve()) if Path(teacher).exists() else teacher}
