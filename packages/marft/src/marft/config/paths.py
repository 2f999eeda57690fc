"""Resolution of recipe paths and modules, relative to the recipe's folder instead of the working folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from marft.common import user_modules
from marft.common.errors import UserError
from marft.common.user_modules import PROJECT_FILE, SOURCE_FOLDER

RECIPE_FOLDER = "recipe_folder"  # key of the recipe folder in saved recipes and in validation contexts


def expand_user(path: str | Path) -> Path:
    """Return a path with ``~`` and ``~user`` expanded; unknown users stay unchanged.

    >>> expand_user("rows/~a.csv")
    PosixPath('rows/~a.csv')
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises for unknown users


def _expand_user_text(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111


ExpandUser = AfterValidator(_expand_user_text)  # for strings that are paths


def register_module_folder(folder: object) -> None:
    """Register a recipe's folder for import paths.

    Its modules come after installed ones and before those of earlier recipes. In a project, modules of its ``src``
    folder come last.
    """
    if isinstance(folder, str) and folder and "\0" not in folder and Path(folder).is_dir():
        user_modules.add_folder(Path(folder))


def check_name_conflict(path: str, context: Mapping[str, object] | None) -> None:
    """Reject an imported module if the recipe's folder has another module of the same name.

    A process can load only one of them.

    Raises:
        UserError: both files exist; the message names them.
    """
    name = path.partition(":")[0].partition(".")[0]
    folder = (context or {}).get(RECIPE_FOLDER)
    if not isinstance(folder, str) or not folder:
        return
    source = Path(folder, SOURCE_FOLDER) if Path(folder, PROJECT_FILE).is_file() else Path(folder)
    files = [
        file for parent in (Path(folder), source) for file in (parent / name / "__init__.py", parent / f"{name}.py")
    ]
    local_file = next((file for file in files if file.is_file()), None)
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if local_file and loaded and not local_file.samefile(loaded):
        raise UserError(
            f"cannot import {path!r} from {local_file}: {loaded} has the same name, and a process can hold one of the "
            "two; rename one of them"
        )


def resolve_recipe_path(path: str, context: Mapping[str, object] | None) -> str:
    """Return a recipe's path as absolute path, relative to the recipe's folder or else the working folder.

    >>> resolve_recipe_path("data/../rows.csv", {"recipe_folder": "/home/me"})
    '/home/me/rows.csv'
    """
    folder = (context or {}).get(RECIPE_FOLDER) or ""
    return os.path.abspath(Path(str(folder)) / expand_user(path))  # noqa: PTH100  abspath does not follow symlinks


def _resolve_path(path: str, info: ValidationInfo) -> str:
    return resolve_recipe_path(path, info.context) if path else ""


AbsolutePath = Annotated[str, Field(pattern=r"^[^\x00]*$"), AfterValidator(_resolve_path)]  # "" stays empty
