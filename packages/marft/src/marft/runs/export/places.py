"""Folders of the machine of training that an export still names, and where."""

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
    """A place of an export that names a folder.

    Args:
        file: by its name in the export.
        at: the key, or the line.
        folder: of the machine of training.
    """

    file: str
    at: str
    folder: str

    @property
    def where(self) -> str:
        """The key or the line, and the file."""
        return f"{self.at} of {self.file}"

    def sentence(self, source: Path | None) -> str:
        """What whoever exports is told.

        Args:
            source: the file here that it is a copy of, where it is one.
        """
        change = "it in the recipe, train" if self.file == RECIPE else str(source or "what it is made from")
        return (
            f"{self.where} names {self.folder}, a folder of this machine: others can read that in the export, and have "
            f"no such folder. If either matters, change {change} and export again"
        )


def known_places(folder: RunFolder, recipe: Mapping[str, Any]) -> list[str]:
    """Folders of this machine that a run has to do with: the recipe's, its own, the home, those of models."""
    models = [model["path"] for model in recipe["models"].values()]
    known = [recipe.get("recipe_folder", ""), str(folder.path.resolve()), str(Path.home()), *models]
    return [place for place in (one.rstrip("/") for one in known) if place.startswith("/")]


def named_in(export: Path, places: Sequence[str]) -> Iterator[Named]:
    """Where the files of an export name one of some folders, or what lies in it: the innermost of them."""
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
    """The keys of a table, or else the lines, that name one of them."""
    try:
        table = TABLES[suffix](text) if suffix in TABLES else None
    except ValueError:  # a file of the author's that is none
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
