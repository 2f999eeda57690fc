"""Resolution of recipe paths and modules, relative to the recipe's folder instead of the working folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import AfterValidator

from marft.common import user_modules
from marft.common.user_modules import PROJECT, SOURCE

FOLDER = "recipe_folder"  # key of the recipe folder in saved recipes and in validation contexts


def at_home(path: str | Path) -> Path:
    """Return a path with ``~`` and ``~user`` expanded; unknown users stay unchanged.

    >>> at_home("rows/~a.csv")
    PosixPath('rows/~a.csv')
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises for unknown users


def _text_at_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111


AtHome = AfterValidator(_text_at_home)  # for strings that are paths


def look_for_modules_in(folder: object) -> None:
    """Register a recipe's folder for import paths.

    Its modules come after installed ones and before those of earlier recipes. In a project, modules of its ``src``
    folder come last.
    """
    if isinstance(folder, str) and folder and "\0" not in folder and Path(folder).is_dir():
        user_modules.add_folder(Path(folder))


def refuse_namesakes(path: str, context: Mapping[str, object] | None) -> None:
    """Reject an imported module if the recipe's folder has another module of the same name.

    A process can load only one of them.

    Raises:
        ValueError: both files exist; the message names them.
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
    """Return a recipe's path as absolute path, relative to the recipe's folder or else the working folder.

    >>> from_recipe("data/../rows.csv", {"recipe_folder": "/home/me"})
    '/home/me/rows.csv'
    """
    folder = (context or {}).get(FOLDER) or ""
    return os.path.abspath(Path(str(folder)) / at_home(path))  # noqa: PTH100  abspath does not follow symlinks
