"""Paths of bundled models."""

from __future__ import annotations

from marft.config.models import BUNDLED


def resolve_path(path: str) -> str:
    """Resolve ``"tiny"``, ``"tiny-tools"``, … to the folder of a bundled checkpoint; other paths stay unchanged."""
    return str(BUNDLED.get(path, path))
