"""Where the paths and modules of a recipe are: in the recipe's own folder, whatever folder the command runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = "recipe_folder"  # what the folder is called in a recipe that is written down, and in validation contexts


PROJECT, SOURCE = "pyproject.toml", "src"  # of a project that keeps its modules apart
_LOOKED_IN: list[str] = []  # folders of the recipes that this process has read, as sys.path has them: at its end


def look_for_modules_in(folder: object) -> None:
    """Let import paths find modules of a recipe's folder: after all others, but before those of earlier recipes. Where
    it is a project, those of its ``src`` are found too, after its own."""
    if not isinstance(folder, str) or not folder or "\0" in folder or not Path(folder).is_dir():
        return
    source = Path(folder, SOURCE)
    if source.is_dir() and Path(folder, PROJECT).is_file():
        _look_in(str(source))
    _look_in(folder)


def _look_in(folder: str) -> None:
    if folder in _LOOKED_IN:
        _LOOKED_IN.remove(folder)
        sys.path[:] = [known for known in sys.path if known != folder]
    if folder not in sys.path:
        first = min((sys.path.index(known) for known in _LOOKED_IN if known in sys.path), default=len(sys.path))
        sys.path.insert(first, folder)
        _LOOKED_IN.append(folder)


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
    at_home = os.path.expanduser(path)  # noqa: PTH111  which leaves users that nobody knows as they are
    return os.path.abspath(Path(str(folder)) / at_home)  # noqa: PTH100  without following links
