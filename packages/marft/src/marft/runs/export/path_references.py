"""References to training-machine folders in an export, with locations."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.common.user_modules import MANIFEST
from marft.runs.export.manifest import RECIPE, list_files
from marft.runs.export.recipe import format_key, iterate_texts
from marft.runs.run_folder import RunFolder

TEXT_SUFFIXES = (".json", ".toml", ".md", ".jinja", ".py", ".txt")
TABLE_PARSERS: Mapping[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads}


@dataclass(frozen=True, slots=True)
class PathReference:
    """Reference to a training-machine folder in an exported file.

    Args:
        file: file name in the export.
        key: key or line in the file.
        folder: folder of the training machine.
    """

    file: str
    key: str
    folder: str

    @property
    def location(self) -> str:
        """Key or line, and file."""
        return f"{self.key} of {self.file}"

    def describe(self, source: Path | None) -> str:
        """Return the note for the user who exports.

        Args:
            source: local file that the exported file was copied from; None if it was generated.
        """
        source_hint = "it in the recipe, train" if self.file == RECIPE else str(source or "what it is made from")
        return (
            f"{self.location} names {self.folder}, a folder of this machine: others can read that in the export, and "
            f"have no such folder. If either matters, change {source_hint} and export again"
        )


def list_local_folders(folder: RunFolder, recipe: Mapping[str, Any]) -> list[str]:
    """Return local folders related to a run: the recipe's, the run's, the home folder and local models."""
    models = [model["path"] for model in recipe["models"].values()]
    folders = [recipe.get("recipe_folder", ""), str(folder.path.resolve()), str(Path.home()), *models]
    return [folder_path for folder_path in (path.rstrip("/") for path in folders) if folder_path.startswith("/")]


def find_folder_references(export: Path, folders: Sequence[str]) -> Iterator[PathReference]:
    """Yield the places in an export that name a folder or a path inside it; the innermost folder counts."""
    longest_first = sorted(folders, key=len, reverse=True)
    pattern = re.compile("(?:" + "|".join(map(re.escape, longest_first)) + r")(?![\w-])")
    for name in list_files(export) if folders else ():
        file = export / name
        if file.suffix in TEXT_SUFFIXES and file.name not in (MANIFEST, "tokenizer.json"):
            text = file.read_text(encoding="utf-8", errors="replace")
            match = pattern.search(text)
            if match:
                yield from (
                    PathReference(name, at, place[0]) for at, place in _find_matches(text, file.suffix, pattern)
                )


def _find_matches(text: str, suffix: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield matching keys in a table, or matching lines in other text."""
    try:
        table = TABLE_PARSERS[suffix](text) if suffix in TABLE_PARSERS else None
    except ValueError:  # an invalid file of the user
        table = None
    rows = (
        ((f"line {number}", line) for number, line in enumerate(text.splitlines(), 1))
        if table is None
        else ((format_key(key), value) for key, value in iterate_texts(table, ()))
    )
    for at, row in rows:
        match = pattern.search(row)
        if match:
            yield at, match
