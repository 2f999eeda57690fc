"""Paths of bundled models."""

from __future__ import annotations

from marft.config.bundled import bundled_models


def resolve_path(path: str) -> str:
    """Return the folder of a bundled model (``"tiny"``, ``"tiny-tools"``, …), or any other path unchanged."""
    return str(bundled_models().get(path, path))
