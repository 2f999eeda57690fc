"""Table rows from any supported format, each with its location for error messages."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo

from marft.common.atomic import check_regular_file
from marft.common.errors import UserError
from marft.common.texts import replace_surrogates, truncate
from marft.config.paths import resolve_recipe_path
from marft.config.settings import did_you_mean
from marft.envs.table_files import (
    MAX_NAME_LENGTH,
    read_dataset,
    read_delimited,
    read_json,
    read_jsonl,
    read_parquet,
    read_saved_dataset,
)
from marft.envs.tasks import digest_content
from marft.rewards.text_match import parse_numbers

Cells = Mapping[str, object]
# keys for a correct answer in a table, from SQuAD, verl, TRL and others; the first key present counts
ANSWER_KEYS = (
    "text",
    "ground_truth",
    "answer",
    "final_answer",
    "label",
    "target",
    "solution",
    "value",
    "reward_model",
    "answers",
)
MAX_DEPTH = 8  # maximum depth of nested tables
_EXPONENT = re.compile(r"(?<=\d)[eE](?=[-+]?\d)")
MAX_PLAIN_DIGITS = 40  # maximum digits of a number in positional notation
MAX_COLUMNS = 100  # columns considered in an error message's hints
FORMATS: Mapping[str, Callable[[Path], Iterator[tuple[str, Cells]]]] = {
    ".csv": partial(read_delimited, delimiter=","),
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
    ".tsv": partial(read_delimited, delimiter="\t"),
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
            UserError: the row has no such column.
        """
        if column not in self.cells:
            columns = [str(name) for name in self.cells]
            raise UserError(f"environment: {self.location} has no column {column!r}{_column_hint(column, columns)}")
        return self.cells[column]

    def text(self, column: str) -> str:
        """Return the value in a column in text form: numbers verbatim, lists and tables in JSON.

        Raises:
            UserError: the row has no such column, or its value contains bytes or an unpaired surrogate.
        """
        cell = self.cell(column)
        if any(isinstance(item, bytes) for item in (cell if isinstance(cell, list) else [cell])):
            raise UserError(
                f"environment: {self.location}: column {column!r} holds bytes, not text; write it as text (in Arrow: "
                "cast the column to string)"
            )
        return self.check_text(format_cell(cell), column)

    def check_text(self, text: str, column: str) -> str:
        """Return the text after a check.

        Raises:
            UserError: the text contains an unpaired surrogate.
        """
        if replace_surrogates(text) != text:
            raise UserError(f"environment: {self.location}: column {column!r} is no whole text: {ascii(text)[:100]}")
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
        UserError: the data is missing, empty or unreadable, or a row is invalid; the message names file and line.
    """
    place = Path(path)
    reader = FORMATS.get(place.suffix.lower())
    if place.is_absolute() and not os.path.isdir(place):  # noqa: PTH112
        try:
            check_regular_file(place)
        except OSError as error:
            raise UserError(f"environment: cannot read {path}: {error.strerror}") from None
    if reader is not None and place.is_absolute():
        rows = reader(place)
    elif place.is_absolute() and not os.path.isdir(place):  # noqa: PTH112  any path length
        if not os.path.exists(place):  # noqa: PTH110
            raise UserError(f"environment: {path} is a file that is not there")
        known = ", ".join(FORMATS)
        raise UserError(f"environment: {path} is a file of which the name says no format; known: {known}")
    elif any(os.path.isfile(place / name) for name in ("state.json", "dataset_dict.json")):  # noqa: PTH113
        rows = read_saved_dataset(place, split)
    else:
        rows = ((f"row {number}", row) for number, row in enumerate(read_dataset(path, subset, split), 1))
    empty = True
    for position, cells in rows:
        empty = False
        yield Row(f"{path}, {position}", cells)
    if empty:
        raise UserError(f"environment: {path} holds no rows")


def format_cell(value: object) -> str:
    """Return a cell in text form: "" for an empty cell, numbers and dates verbatim, lists and tables in JSON.

    >>> format_cell(7), format_cell(True), format_cell(None), format_cell(["a", 1]), format_cell(float("nan"))
    ('7', 'true', '', '["a", 1]', '')
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):  # number columns store a missing value as NaN
        return ""
    is_json = isinstance(value, bool | int | float | list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)


def _column_hint(column: str, columns: list[str]) -> str:
    columns = [truncate(name, MAX_NAME_LENGTH) for name in columns[:MAX_COLUMNS]]
    hint = did_you_mean(column, columns)
    return hint if hint.startswith("; known") or not hint else f"{hint} It has: {', '.join(sorted(columns))}"


def read_gold_answers(answer: object) -> list[str]:
    """Return the correct answers in a cell, as plain text.

    These are the items of a list or of SQuAD's ``{"text": […]}``, the value under a known key in a table (also as
    JSON), or the cell itself. Empty answers are dropped.

    >>> read_gold_answers(7.0), read_gold_answers(["a", 2, None, ""])
    (['7'], ['a', '2'])
    >>> read_gold_answers({"text": ["a"], "answer_start": [3]})
    ['a']
    >>> read_gold_answers('{"ground_truth": "4", "style": "rule"}')
    ['4']
    """
    answer = extract_label(answer)
    items = list(answer) if isinstance(answer, list | tuple) else [answer]
    return [text for item in items if (text := format_value(extract_label(item))).strip()]


def extract_label(cell: object) -> object:
    """Return the correct answer inside a cell: the value under the first key from ``ANSWER_KEYS``, else the cell.

    The cell may be a table, a table as JSON, or a nested table. If all these values are empty, return None.

    >>> [extract_label(cell) for cell in ({"text": ["a", "b"]}, '{"x": 1}', 3, {"ground_truth": None})]
    [['a', 'b'], '{"x": 1}', 3, None]
    >>> extract_label({"reward_model": {"ground_truth": {"target": ["a"]}}})
    ['a']
    """
    for _ in range(MAX_DEPTH):
        table = _parse_table(cell)
        labels = [] if table is None else [table[name] for name in ANSWER_KEYS if name in table]
        if not labels:
            return cell
        cell = next((label for label in labels if label is not None), None)
    return cell


def _parse_table(cell: object) -> Mapping[str, object] | None:
    """Return the table in a cell, possibly written in JSON, or None."""
    if isinstance(cell, str) and cell.lstrip().startswith("{"):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return None
    return cell if isinstance(cell, Mapping) else None


def format_value(value: object) -> str:
    """Return a value as plain text: integers without a decimal point, dates without a time.

    >>> format_value(7.0), format_value(Decimal("2.50")), format_value(True), format_value(datetime(2024, 5, 1))
    ('7', '2.5', 'true', '2024-05-01')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal) and math.isfinite(value):
        if not value:
            return "0"
        exact = Decimal(repr(value)) if isinstance(value, float) else value
        return f"{exact.normalize():f}" if abs(exact.adjusted()) < MAX_PLAIN_DIGITS else f"{exact.normalize()}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").removesuffix(" 00:00:00")
    return "" if isinstance(value, Decimal) else format_cell(value)


def same_value(gold: object, text: str) -> bool:
    """Return true if a text expresses a typed value in another notation.

    Examples are a number with other decimals, "yes" for a Boolean, or another format of a time.

    >>> same_value(7.0, "7.00"), same_value(True, "Yes"), same_value(date(2024, 5, 1), "2024-05-01T00:00:00")
    (True, True, True)
    >>> same_value("7.0", "7")
    False
    """
    if isinstance(gold, bool):
        return text.casefold() in (("true", "yes") if gold else ("false", "no"))
    if isinstance(gold, int | float | Decimal):
        numbers = parse_numbers(text)
        has_letters = re.search(r"[^\W\d]", _EXPONENT.sub("", text))
        return len(numbers) == 1 and not has_letters and numbers == parse_numbers(format_value(gold))
    if isinstance(gold, date):
        try:
            parsed = datetime.fromisoformat(text)
        except ValueError:
            return False
        expected = gold if isinstance(gold, datetime) else datetime(gold.year, gold.month, gold.day)
        if expected.tzinfo and parsed.tzinfo:
            return parsed == expected
        return parsed.replace(tzinfo=None) == expected.replace(tzinfo=None)
    if isinstance(gold, time):
        try:
            return time.fromisoformat(text) == gold
        except (ValueError, TypeError):  # one of them has a time zone
            return False
    return False


def is_missing(answer: object) -> bool:
    """Return true if a cell holds no correct answer."""
    return not read_gold_answers(answer)
