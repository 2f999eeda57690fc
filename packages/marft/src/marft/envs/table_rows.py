"""Table rows from any supported format, each with its location for error messages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from math import isnan
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo

from marft.common.atomic import check_regular_file
from marft.common.texts import replace_surrogates, truncate
from marft.config.paths import resolve_recipe_path
from marft.config.settings import did_you_mean
from marft.envs.arrow_tables import read_parquet, read_saved_dataset
from marft.envs.content_digest import digest_content
from marft.envs.hf_datasets import read_dataset
from marft.envs.text_tables import MAX_NAME_LENGTH, read_csv, read_json, read_jsonl, read_tsv

Cells = Mapping[str, object]
MAX_COLUMNS = 100  # columns considered in an error message's hints
FORMATS: Mapping[str, Callable[[Path], Iterator[tuple[str, Cells]]]] = {
    ".csv": read_csv,
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
    ".tsv": read_tsv,
}


class Row(NamedTuple):
    """Table row: its location in ``location``, such as ``problems.csv, line 7``, and values by column in ``cells``."""

    location: str
    cells: Cells

    @property
    def digest(self) -> str:
        """Digest of the cells, independent of column order; plain values enter verbatim."""
        return digest_content(*(part for name in sorted(self.cells) for part in (name, _digest_form(self.cells[name]))))

    def cell(self, column: str) -> object:
        """Return the value in a column.

        Raises:
            ValueError: the row has no such column.
        """
        if column not in self.cells:
            columns = [str(name) for name in self.cells]
            raise ValueError(f"environment: {self.location} has no column {column!r}{_column_hint(column, columns)}")
        return self.cells[column]

    def text(self, column: str) -> str:
        """Return the value in a column in text form: numbers verbatim, lists and tables in JSON.

        Raises:
            ValueError: the row has no such column, or its value contains bytes or an unpaired surrogate.
        """
        cell = self.cell(column)
        if any(isinstance(item, bytes) for item in (cell if isinstance(cell, list) else [cell])):
            raise ValueError(
                f"environment: {self.location}: column {column!r} holds bytes, not text; write it as text (in Arrow: "
                "cast the column to string)"
            )
        return self.check_text(format_cell(cell), column)

    def check_text(self, text: str, column: str) -> str:
        """Return the text after a check.

        Raises:
            ValueError: the text contains an unpaired surrogate.
        """
        if replace_surrogates(text) != text:
            raise ValueError(f"environment: {self.location}: column {column!r} is no whole text: {ascii(text)[:100]}")
        return text


def _digest_form(cell: object) -> bytes | str:
    """Return a cell's form for a digest: bytes unchanged, other values as JSON.

    A value without a JSON form enters as its type name.
    """
    if isinstance(cell, bytes):
        return cell
    try:
        return json.dumps(cell, sort_keys=True, default=lambda value: type(value).__name__)
    except (TypeError, ValueError, RecursionError):
        return type(cell).__name__


def _resolve_table_path(path: str, info: ValidationInfo) -> str:
    """Return an absolute path; a path that neither exists nor resembles a file is an id on the Hugging Face Hub."""
    resolved = resolve_recipe_path(path, info.context) if path else ""
    looks_like_file = path.startswith(("/", ".", "~")) or Path(path).suffix.lower() in FORMATS
    return resolved if resolved and (looks_like_file or os.path.exists(resolved)) else path  # noqa: PTH110  any path length


TablePath = Annotated[str, Field(pattern=r"^[^\x00]*$"), AfterValidator(_resolve_table_path)]


def read_table(path: str, subset: str, split: str) -> Iterator[Row]:
    """Yield the rows from a file, a saved data set, a folder of files, or a data set on the Hugging Face Hub.

    Args:
        subset: configuration name of a data set on the Hub; "" for the default.
        split: split to read from a data set that has several.

    Raises:
        ValueError: the data is missing, empty or unreadable, or a row is invalid; the message names file and line.
    """
    place = Path(path)
    reader = FORMATS.get(place.suffix.lower())
    if place.is_absolute() and not os.path.isdir(place):  # noqa: PTH112
        try:
            check_regular_file(place)
        except OSError as error:
            raise ValueError(f"environment: cannot read {path}: {error.strerror}") from None
    if reader is not None and place.is_absolute():
        rows = reader(place)
    elif place.is_absolute() and not os.path.isdir(place):  # noqa: PTH112  any path length
        known_formats = ", ".join(FORMATS)
        problem = (
            f"of which the name says no format; known: {known_formats}"
            if os.path.exists(place)  # noqa: PTH110
            else "that is not there"
        )
        raise ValueError(f"environment: {path} is a file {problem}")
    elif any(os.path.isfile(place / name) for name in ("state.json", "dataset_dict.json")):  # noqa: PTH113
        rows = read_saved_dataset(place, split)
    else:
        rows = ((f"row {number}", row) for number, row in enumerate(read_dataset(path, subset, split), 1))
    empty = True
    for position, cells in rows:
        empty = False
        yield Row(f"{path}, {position}", cells)
    if empty:
        raise ValueError(f"environment: {path} holds no rows")


def format_cell(value: object) -> str:
    """Return a cell in text form: "" for an empty cell, numbers and dates verbatim, lists and tables in JSON.

    >>> format_cell(7), format_cell(True), format_cell(None), format_cell(["a", 1]), format_cell(float("nan"))
    ('7', 'true', '', '["a", 1]', '')
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and isnan(value)):  # number columns store a missing value as NaN
        return ""
    is_json = isinstance(value, bool | int | float | list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)


def _column_hint(column: str, columns: list[str]) -> str:
    columns = [truncate(name, MAX_NAME_LENGTH) for name in columns[:MAX_COLUMNS]]
    hint = did_you_mean(column, columns)
    return hint if hint.startswith("; known") or not hint else f"{hint} It has: {', '.join(sorted(columns))}"
