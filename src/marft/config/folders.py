"""Where the paths and modules of a recipe are: in the recipe's own folder, whatever folder the command runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = "recipe_folder"  # what the folder is called in a recipe that is written down, and in validation contexts


def look_for_modules_in(folder: object) -> None:
    """Let import paths find modules of a recipe's folder, after all others."""
    if isinstance(folder, str) and folder and "\0" not in folder and folder not in sys.path and Path(folder).is_dir():
        sys.path.append(folder)


def from_recipe(path: str, context: Mapping[str, object] | None) -> str:
    """A path of a recipe, absolute: relative to the recipe's folder, or to the current one where a recipe has none.

    >>> from_recipe("data/../rows.csv", {"recipe_folder": "/home/me"})
    '/home/me/rows.csv'
    """
    folder = (context or {}).get(FOLDER) or ""
    at_home = os.path.expanduser(path)  # noqa: PTH111  which leaves users that nobody knows as they are
    return os.path.abspath(Path(str(folder)) / at_home)  # noqa: PTH100  without following links
