"""Export loading: the recipe of an export with its paths resolved."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marft.common import user_modules
from marft.common.user_modules import CODE, TEAM
from marft.config.folders import FOLDER
from marft.config.load import parse_recipe
from marft.config.run import RunSettings
from marft.runs.export.manifest import RECIPE, Export
from marft.runs.export.recipe import KEPT, dotted, runs_code, texts_in


def recipe_of(export: Export, trust_code: bool = False) -> dict[str, Any]:
    """Return an export's recipe table.

    Args:
        trust_code: accept third-party code, programs and servers in the recipe.

    Raises:
        ValueError: the recipe names third-party code without ``trust_code``, or does not match its manifest.
    """
    table = tomllib.loads((export.path / RECIPE).read_text(encoding="utf-8"))
    theirs = runs_code(table)
    if theirs and not trust_code:
        raise ValueError(
            f"{export.path} would run code, or ask servers, of its author's: {'; '.join(theirs[:5])}. Read it, and "
            "say --trust-code"
        )
    place = export.path.resolve()
    for key in export.manifest.paths:
        try:
            _resolve(table, key.split("."), place)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{export.path}: {RECIPE} has no path in the export under {key!r}") from error
    folder = place / CODE if (place / CODE).is_dir() else place
    others = sorted(set(table) - set(KEPT))
    user_modules.note(f"{export.path}: {RECIPE} has keys of no export, which are not read: {others}" if others else "")
    table = {key: table[key] for key in KEPT if key in table}
    _refuse_unlisted(export, table, folder)
    user_modules.note(export.note)
    user_modules.add(user_modules.of_export(place, folder, export.digests if trust_code else {}))
    return {**table, FOLDER: str(folder)}


def _refuse_unlisted(export: Export, table: Mapping[str, Any], folder: Path) -> None:
    """Check the recipe's files against the manifest.

    Raises:
        ValueError: the recipe names a file or folder of the export without an entry in the manifest.
    """
    place = export.path.resolve()
    unlisted = {one for name in export.unlisted for one in (place / name, *(place / name).parents)} - {
        one for name in export.digests for one in (place / name).parents
    }
    for key, value in texts_in(table, ()):
        if Path(os.path.normpath(folder / value)) in unlisted:
            raise ValueError(f"{export.path}: {dotted(key)} of {RECIPE} names {value}, which {TEAM} does not list")


def settings_of(export: Export, overrides: Sequence[str] = (), trust_code: bool = False) -> RunSettings:
    """Return the settings of an exported team, for evaluation and serving without training.

    Raises:
        ValueError: see :func:`recipe_of`; or a part that was left out of the export is not given.
    """
    return parse_recipe(recipe_of(export, trust_code), overrides, str(export.path / RECIPE))


def check_bases(export: Export, digests: Mapping[str, str]) -> None:
    """Check the loaded base models against the models used in training.

    Args:
        digests: digests of the loaded models (:meth:`marft.models.pool.Models.digests`).

    Raises:
        ValueError: a model has other weights, another tokenizer or another chat template.
    """
    for name, model in export.manifest.models.items():
        if model.digest and digests.get(f"models.{name}", model.digest) != model.digest:
            raise ValueError(
                f"models.{name} ({model.path}) is not what the team of {export.path} learned on: its weights, "
                "tokenizer or chat template are others"
            )


def _resolve(table: Any, key: Sequence[str], place: Path) -> None:
    """Make a relative path of a recipe absolute, in place.

    Raises:
        ValueError, KeyError, IndexError, TypeError: the key has no path, or the path leaves the export.
    """
    for part in key[:-1]:
        table = table[int(part)] if isinstance(table, list) else table[part]
    last: Any = int(key[-1]) if isinstance(table, list) else key[-1]
    found = place / table[last]
    if not found.resolve().is_relative_to(place):
        raise ValueError("it leads out of the export")
    table[last] = str(found)
