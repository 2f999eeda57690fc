"""References to training-machine folders in an export, with locations."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.common.user_modules import TEAM
from marft.runs.export.manifest import RECIPE, files_in
from marft.runs.export.recipe import dotted, texts_in
from marft.runs.folder import RunFolder

TEXTS = (".json", ".toml", ".md", ".jinja", ".py", ".txt")
TABLES: Mapping[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads}


@dataclass(frozen=True, slots=True)
class Named:
    """Reference to a training-machine folder in an exported file.

    Args:
        file: file name in the export.
        at: key or line in the file.
        folder: folder of the training machine.
    """

    file: str
    at: str
    folder: str

    @property
    def where(self) -> str:
        """Key or line, and file."""
        return f"{self.at} of {self.file}"

    def sentence(self, source: Path | None) -> str:
        """Return the note for the user who exports.

        Args:
            source: local file that the exported file was copied from; None if it was generated.
        """
        change = "it in the recipe, train" if self.file == RECIPE else str(source or "what it is made from")
        return (
            f"{self.where} names {self.folder}, a folder of this machine: others can read that in the export, and have "
            f"no such folder. If either matters, change {change} and export again"
        )


def known_places(folder: RunFolder, recipe: Mapping[str, Any]) -> list[str]:
    """Return local folders related to a run: the recipe's, the run's, the home folder and local models."""
    models = [model["path"] for model in recipe["models"].values()]
    known = [recipe.get("recipe_folder", ""), str(folder.path.resolve()), str(Path.home()), *models]
    return [place for place in (one.rstrip("/") for one in known) if place.startswith("/")]


def named_in(export: Path, places: Sequence[str]) -> Iterator[Named]:
    """Yield the places in an export that name a folder or a path inside it; the innermost folder counts."""
    innermost = sorted(places, key=len, reverse=True)
    known = re.compile("(?:" + "|".join(map(re.escape, innermost)) + r")(?![\w-])")
    for name in files_in(export) if places else ():
        file = export / name
        if file.suffix in TEXTS and file.name not in (TEAM, "tokenizer.json"):
            text = file.read_text(encoding="utf-8", errors="replace")
            found = known.search(text)
            if found:
                yield from (Named(name, at, place[0]) for at, place in _at(text, file.suffix, known))


def _at(text: str, suffix: str, known: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield matching keys in a table, or matching lines in other text."""
    try:
        table = TABLES[suffix](text) if suffix in TABLES else None
    except ValueError:  # an invalid file of the user
        table = None
    rows = (
        ((f"line {number}", line) for number, line in enumerate(text.splitlines(), 1))
        if table is None
        else ((dotted(key), value) for key, value in texts_in(table, ()))
    )
    for at, row in rows:
        found = known.search(row)
        if found:
            yield at, found
