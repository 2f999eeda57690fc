"""Where models lie."""

from __future__ import annotations

from importlib.resources import files

BUNDLED = {"tiny": "tiny"}


def resolve_path(path: str) -> str:
    """``"tiny"`` → the bundled checkpoint's folder; anything else as it is."""
    return str(files("marft.models") / BUNDLED[path]) if path in BUNDLED else path
