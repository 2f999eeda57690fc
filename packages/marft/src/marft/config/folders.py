"""Where the paths and modules of a recipe are: in the recipe's own folder, whatever folder the command runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import AfterValidator

from marft.common import user_modules
from marft.common.user_modules import PROJECT, SOURCE

FOLDER = "recipe_folder"  # what the folder is called in a recipe that is written down, and in validation contexts


def at_home(path: str | Path) -> Path:
    """Return a path with ``~`` and ``~user`` expanded; users that nobody knows stay as they are.

    >>> at_home("rows/~a.csv")
    PosixPath('rows/~a.csv')
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111  which raises where there is no such user


def _text_at_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111


AtHome = AfterValidator(_text_at_home)  # of texts that are paths


def look_for_modules_in(folder: object) -> None:
    """Let import paths find modules of a recipe's folder: after all others, but before those of earlier recipes. Where
    it is a project, those of its ``src`` are found too, after its own."""
    if isinstance(folder, str) and folder and "\0" not in folder and Path(folder).is_dir():
        user_modules.add_folder(Path(folder))


def refuse_namesakes(path: str, context: Mapping[str, object] | None) -> None:
    """Refuse an imported module where the recipe's folder holds another one of its name: Python has room for one.

    Raises:
        ValueError: naming both files.
    """
    name = path.partition(":")[0].partition(".")[0]
    folder = (context or {}).get(FOLDER)
    if not isinstance(folder, str) or not folder:
        return
    source = Path(folder, SOURCE) if Path(folder, PROJECT).is_file() else Path(folder)
    files = [file for place in (Path(folder), source) for file in (place / name / "__init__.py", place / f"{name}.py")]
    beside = next((file for file in files if file.is_file()), None)
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if beside and loaded and not beside.samefile(loaded):
        raise ValueError(
            f"cannot import {path!r} from {beside}: {loaded} has the same name, and a process can hold one of the two; "
            "rename one of them"
        )


def from_recipe(path: str, context: Mapping[str, object] | None) -> str:
    """A path of a recipe, absolute: relative to the recipe's folder, or to the current one where a recipe has none.

    >>> from_recipe("data/../rows.csv", {"recipe_folder": "/home/me"})
    '/home/me/rows.csv'
    """
    folder = (context or {}).get(FOLDER) or ""
    return os.path.abspath(Path(str(folder)) / at_home(path))  # noqa: PTH100  without following links
