"""Table rows from any supported format, each with its location for error messages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from math import isnan
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo

from marft.common.atomic import regular
from marft.common.texts import cut, storable
from marft.config.folders import from_recipe
from marft.config.settings import did_you_mean
from marft.envs.arrow_tables import parquet_rows, saved_rows
from marft.envs.contents import content_of
from marft.envs.data_sets import read_dataset
from marft.envs.text_tables import LONGEST_NAME, csv_rows, json_rows, jsonl_rows, tsv_rows

Cells = Mapping[str, object]
MOST_COLUMNS = 100  # columns considered in an error message's hints
FORMATS: Mapping[str, Callable[[Path], Iterator[tuple[str, Cells]]]] = {
    ".csv": csv_rows,
    ".json": json_rows,
    ".jsonl": jsonl_rows,
    ".ndjson": jsonl_rows,
    ".parquet": parquet_rows,
    ".tsv": tsv_rows,
}


class Row(NamedTuple):
    """Table row: its location in ``place``, such as ``problems.csv, line 7``, and its values by column in ``cells``."""

    place: str
    cells: Cells

    @property
    def digest(self) -> str:
        """Digest of the cells, independent of column order; plain values enter verbatim."""
        return content_of(*(part for name in sorted(self.cells) for part in (name, _plainly(self.cells[name]))))

    def cell(self, column: str) -> object:
        """Return the value in a column.

        Raises:
            ValueError: the row has no such column.
        """
        if column not in self.cells:
            columns = [str(name) for name in self.cells]
            raise ValueError(f"environment: {self.place} has no column {column!r}{_columns(column, columns)}")
        return self.cells[column]

    def text(self, column: str) -> str:
        """Return the value in a column in text form: numbers verbatim, lists and tables in JSON.

        Raises:
            ValueError: the row has no such column, or its value contains bytes or an unpaired surrogate.
        """
        cell = self.cell(column)
        if any(isinstance(one, bytes) for one in (cell if isinstance(cell, list) else [cell])):
            raise ValueError(
                f"environment: {self.place}: column {column!r} holds bytes, not text; write it as text (in Arrow: cast "
                "the column to string)"
            )
        return self.whole(written(cell), column)

    def whole(self, text: str, column: str) -> str:
        """Return the text after a check.

        Raises:
            ValueError: the text contains an unpaired surrogate.
        """
        if storable(text) != text:
            raise ValueError(f"environment: {self.place}: column {column!r} is no whole text: {ascii(text)[:100]}")
        return text


def _plainly(cell: object) -> bytes | str:
    """Return a cell's form for a digest: bytes unchanged, other values as JSON.

    A value without a JSON form enters as its type name.
    """
    if isinstance(cell, bytes):
        return cell
    try:
        return json.dumps(cell, sort_keys=True, default=lambda one: type(one).__name__)
    except (TypeError, ValueError, RecursionError):
        return type(cell).__name__


def _a_table(path: str, info: ValidationInfo) -> str:
    """Return an absolute path; a path that neither exists nor resembles a file is an id on the Hugging Face Hub."""
    place = from_recipe(path, info.context) if path else ""
    like_a_file = path.startswith(("/", ".", "~")) or Path(path).suffix.lower() in FORMATS
    return place if place and (like_a_file or os.path.exists(place)) else path  # noqa: PTH110  any path length


TablePath = Annotated[str, Field(pattern=r"^[^\x00]*$"), AfterValidator(_a_table)]


def read_table(path: str, subset: str, part: str) -> Iterator[Row]:
    """Yield the rows from a file, a saved data set, a folder of files, or a data set on the Hugging Face Hub.

    Args:
        subset: configuration name of a data set on the Hub; "" for the default.
        part: split to read from a data set that has several.

    Raises:
        ValueError: the data is missing, empty or unreadable, or a row is invalid; the message names file and line.
    """
    place = Path(path)
    reader = FORMATS.get(place.suffix.lower())
    if place.is_absolute() and not os.path.isdir(place):  # noqa: PTH112
        try:
            regular(place)
        except OSError as error:
            raise ValueError(f"environment: cannot read {path}: {error.strerror}") from None
    if reader is not None and place.is_absolute():
        rows = reader(place)
    elif place.is_absolute() and not os.path.isdir(place):  # noqa: PTH112  any path length
        known = ", ".join(FORMATS)
        why = f"of which the name says no format; known: {known}" if os.path.exists(place) else "that is not there"  # noqa: PTH110
        raise ValueError(f"environment: {path} is a file {why}")
    elif any(os.path.isfile(place / name) for name in ("state.json", "dataset_dict.json")):  # noqa: PTH113
        rows = saved_rows(place, part)
    else:
        rows = ((f"row {number}", row) for number, row in enumerate(read_dataset(path, subset, part), 1))
    empty = True
    for where, cells in rows:
        empty = False
        yield Row(f"{path}, {where}", cells)
    if empty:
        raise ValueError(f"environment: {path} holds no rows")


def written(value: object) -> str:
    """Return a cell in text form: "" for an empty cell, numbers and dates verbatim, lists and tables in JSON.

    >>> written(7), written(True), written(None), written(["a", 1]), written(float("nan"))
    ('7', 'true', '', '["a", 1]', '')
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and isnan(value)):  # number columns store a missing value as NaN
        return ""
    plain = isinstance(value, bool | int | float | list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if plain else str(value)


def _columns(column: str, known: list[str]) -> str:
    known = [cut(name, LONGEST_NAME) for name in known[:MOST_COLUMNS]]
    hint = did_you_mean(column, known)
    return hint if hint.startswith("; known") or not hint else f"{hint} It has: {', '.join(sorted(known))}"
