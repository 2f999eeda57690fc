"""Where models lie."""

from __future__ import annotations

from marft.config.models import BUNDLED


def resolve_path(path: str) -> str:
    """``"tiny"``, ``"tiny-tools"``, … → a bundled checkpoint's folder; anything else as it is."""
    return str(BUNDLED.get(path, path))
