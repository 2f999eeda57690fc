"""Text tables: JSON lines, a JSON array, comma- and tab-separated values, each row with its location."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from marft.common.atomic import check_regular_file
from marft.common.texts import truncate

Rows = Iterator[tuple[str, dict[str, object]]]
MAX_NAME_LENGTH = 200  # maximum characters of a column name in a message
MAX_CELL_LENGTH = 2**31 - 1  # maximum characters of a cell; the csv module's own limit is 131,072
OTHER_DELIMITERS = ";\t|"  # other delimiters in some files named .csv
OBJECT_HINT = 'a row is an object, such as {"question": "1 + 1?", "answer": "2"}'


def read_jsonl(path: Path) -> Rows:
    """Yield JSON objects, one per nonempty line.

    Raises:
        ValueError: a line is not a JSON object, or the file cannot be read; likewise for the other readers.
    """
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield (
                    f"line {number}",
                    _check_object(_parse_json(line, f"{path}, line {number}"), f"{path}, line {number}"),
                )


def read_json(path: Path) -> Rows:
    """Yield the objects in a JSON array; a file with one object per line works too."""
    with _open_text(path) as file:
        text = file.read()
    if not text.lstrip().startswith("["):
        yield from read_jsonl(path)
        return
    for number, entry in enumerate(_parse_json(text, str(path)), 1):
        yield f"entry {number}", _check_object(entry, f"{path}, entry {number}")


def read_csv(path: Path) -> Rows:
    """Yield comma-separated rows; the first line names the columns, and quoted cells may contain line breaks."""
    return _read_delimited(path, ",")


def read_tsv(path: Path) -> Rows:
    """Yield tab-separated rows, otherwise like comma-separated ones."""
    return _read_delimited(path, "\t")


def _read_delimited(path: Path, delimiter: str) -> Rows:
    csv.field_size_limit(MAX_CELL_LENGTH)
    with _open_text(path) as file:
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        start_line = 1
        try:
            for cells in lines:
                position, start_line = f"line {start_line}", lines.line_num + 1
                if not cells:  # empty line
                    continue
                if header is None:
                    header = _check_header(cells, f"{path}, {position}", delimiter)
                    continue
                if len(cells) != len(header):
                    raise ValueError(
                        f"environment: {path}, {position} has {len(cells)} cells, and the header names {len(header)} "
                        f"columns; a cell that holds {delimiter!r}, a quote or a line break stands between quotes, and "
                        "quotes in it are doubled"
                    )
                yield position, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise ValueError(
                f"environment: {path}: the row that begins at line {start_line} cannot be read: {error}; see that its "
                "quotes end, and that quotes inside them are doubled"
            ) from error


def _check_header(cells: list[str], location: str, delimiter: str) -> list[str]:
    found_delimiter = next((sign for sign in OTHER_DELIMITERS if len(cells) == 1 and sign in cells[0]), "")
    if found_delimiter:
        raise ValueError(
            f"environment: {location} names one column, {truncate(repr(cells[0]), MAX_NAME_LENGTH)}: if "
            f"{found_delimiter!r} is to separate columns, save the table with {delimiter!r} in its place"
            + (", or call it .tsv" if found_delimiter == "\t" else "")
        )
    if (name := find_duplicate(cells)) is not None:
        raise ValueError(
            f"environment: {location}: two columns are called {truncate(repr(name), MAX_NAME_LENGTH)}; rename one"
        )
    return cells


def find_duplicate(names: Iterable[str]) -> str | None:
    """Return the first name with a second occurrence, or None without duplicates.

    >>> find_duplicate(["a", "b", "a", "b"])
    'a'
    """
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _parse_json(text: str, location: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_reject_duplicate_keys)
    except _DuplicateKeyError as error:
        raise ValueError(f"environment: {location}: the key {error.args[0]} comes twice in one object") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"environment: {location} is not JSON: {error.msg}, at character {error.pos + 1}; {OBJECT_HINT}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment: {location} is not JSON: {error}; {OBJECT_HINT}") from error


class _DuplicateKeyError(Exception):
    """Duplicate key in a JSON object."""


def _reject_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if (name := find_duplicate(key for key, _ in pairs)) is not None:
        raise _DuplicateKeyError(truncate(repr(name), MAX_NAME_LENGTH))
    return dict(pairs)


def _check_object(entry: object, location: str) -> dict[str, object]:
    if not isinstance(entry, dict):
        raise ValueError(f"environment: {location} is a {type(entry).__name__}; {OBJECT_HINT}")
    return entry


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    """Open a file as UTF-8, with or without a byte-order mark.

    Raises:
        ValueError: the file cannot be read, or is not UTF-8.
    """
    try:
        with check_regular_file(path).open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise ValueError(f"environment: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"environment: {path} is not UTF-8 ({error.reason}); save it as UTF-8") from error
