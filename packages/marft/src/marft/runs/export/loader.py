"""Export loading: the recipe of an export with its paths resolved."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marft.common import user_modules
from marft.common.user_modules import CODE_FOLDER, MANIFEST
from marft.config.load import parse_recipe
from marft.config.paths import RECIPE_FOLDER
from marft.config.run import RunSettings
from marft.runs.export.manifest import RECIPE, Export
from marft.runs.export.recipe import EXPORTED_KEYS, find_code_keys, format_key, iterate_texts


def read_recipe_table(export: Export, trust_code: bool = False) -> dict[str, Any]:
    """Return an export's recipe table.

    Args:
        trust_code: accept third-party code, programs and servers in the recipe.

    Raises:
        ValueError: the recipe names third-party code without ``trust_code``, or does not match its manifest.
    """
    table = tomllib.loads((export.path / RECIPE).read_text(encoding="utf-8"))
    code_keys = find_code_keys(table)
    if code_keys and not trust_code:
        raise ValueError(
            f"{export.path} would run code, or ask servers, of its author's: {'; '.join(code_keys[:5])}. Read it, and "
            "say --trust-code"
        )
    export_folder = export.path.resolve()
    for key in export.manifest.paths:
        try:
            _resolve(table, key.split("."), export_folder)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{export.path}: {RECIPE} has no path in the export under {key!r}") from error
    folder = export_folder / CODE_FOLDER if (export_folder / CODE_FOLDER).is_dir() else export_folder
    unknown_keys = sorted(set(table) - set(EXPORTED_KEYS))
    user_modules.notify_once(
        f"{export.path}: {RECIPE} has keys of no export, which are not read: {unknown_keys}" if unknown_keys else ""
    )
    table = {key: table[key] for key in EXPORTED_KEYS if key in table}
    _check_unlisted(export, table, folder)
    user_modules.notify_once(export.note)
    user_modules.add_root(user_modules.export_root(export_folder, folder, export.digests if trust_code else {}))
    return {**table, RECIPE_FOLDER: str(folder)}


def _check_unlisted(export: Export, table: Mapping[str, Any], folder: Path) -> None:
    """Check the recipe's files against the manifest.

    Raises:
        ValueError: the recipe names a file or folder of the export without an entry in the manifest.
    """
    export_folder = export.path.resolve()
    unlisted = {
        file for name in export.unlisted for file in (export_folder / name, *(export_folder / name).parents)
    } - {file for name in export.digests for file in (export_folder / name).parents}
    for key, value in iterate_texts(table, ()):
        if Path(os.path.normpath(folder / value)) in unlisted:
            raise ValueError(
                f"{export.path}: {format_key(key)} of {RECIPE} names {value}, which {MANIFEST} does not list"
            )


def load_settings(export: Export, overrides: Sequence[str] = (), trust_code: bool = False) -> RunSettings:
    """Return the settings of an exported team, for evaluation and serving without training.

    Raises:
        ValueError: see :func:`read_recipe_table`; or a part that was left out of the export is not given.
    """
    return parse_recipe(read_recipe_table(export, trust_code), overrides, str(export.path / RECIPE))


def check_bases(export: Export, loaded_digests: Mapping[str, str]) -> None:
    """Check the loaded base models against the models used in training.

    Args:
        loaded_digests: digests of the loaded models
            (:meth:`marft.models.policy_registry.PolicyRegistry.compute_digests`).

    Raises:
        ValueError: a model has other weights, another tokenizer or another chat template.
    """
    for name, model in export.manifest.models.items():
        if model.digest and loaded_digests.get(f"models.{name}", model.digest) != model.digest:
            raise ValueError(
                f"models.{name} ({model.path}) is not what the team of {export.path} learned on: its weights, "
                "tokenizer or chat template are others"
            )


def _resolve(table: Any, key: Sequence[str], folder: Path) -> None:
    """Make a relative path of a recipe absolute, in place.

    Raises:
        ValueError, KeyError, IndexError, TypeError: the key has no path, or the path leaves the export.
    """
    for part in key[:-1]:
        table = table[int(part)] if isinstance(table, list) else table[part]
    last: Any = int(key[-1]) if isinstance(table, list) else key[-1]
    target = folder / table[last]
    if not target.resolve().is_relative_to(folder):
        raise ValueError("it leads out of the export")
    table[last] = str(target)
