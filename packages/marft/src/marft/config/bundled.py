"""Bundled recipes, available under their file names in every working folder."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from marft.config.settings import did_you_mean

RECIPES = files("marft") / "recipes"
SUFFIX = ".toml"


def bundled_names() -> list[str]:
    """Return the names: ``["demo", "demo_single", …]``."""
    return sorted(file.name.removesuffix(SUFFIX) for file in RECIPES.iterdir() if file.name.endswith(SUFFIX))


def bundled(name: str) -> Traversable:
    """Return a bundled recipe's file.

    Raises:
        ValueError: no bundled recipe has this name.
    """
    if name not in bundled_names():
        raise ValueError(f"no bundled recipe is called {name!r}{did_you_mean(name, bundled_names())}")
    return RECIPES / f"{name}{SUFFIX}"


def bundled_about(name: str) -> str:
    """Return a bundled recipe's description: the first line of its comment."""
    return bundled(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
