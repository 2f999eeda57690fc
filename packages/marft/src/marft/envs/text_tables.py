"""Text tables: JSON lines, a JSON array, comma- and tab-separated values, each row with its location."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from marft.common.atomic import regular
from marft.common.texts import cut

Rows = Iterator[tuple[str, dict[str, object]]]
LONGEST_NAME = 200  # maximum characters of a column name in a message
LONGEST_CELL = 2**31 - 1  # maximum characters of a cell; the csv module's own limit is 131,072
OTHERS = ";\t|"  # other delimiters in some files named .csv
AN_OBJECT = 'a row is an object, such as {"question": "1 + 1?", "answer": "2"}'


def jsonl_rows(path: Path) -> Rows:
    """Yield JSON objects, one per nonempty line.

    Raises:
        ValueError: a line is not a JSON object, or the file cannot be read; likewise for the other readers.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"line {number}", _an_object(_parsed(line, f"{path}, line {number}"), f"{path}, line {number}")


def json_rows(path: Path) -> Rows:
    """Yield the objects in a JSON array; a file with one object per line works too."""
    with _opened(path) as file:
        text = file.read()
    if not text.lstrip().startswith("["):
        yield from jsonl_rows(path)
        return
    for number, entry in enumerate(_parsed(text, str(path)), 1):
        yield f"entry {number}", _an_object(entry, f"{path}, entry {number}")


def csv_rows(path: Path) -> Rows:
    """Yield comma-separated rows; the first line names the columns, and quoted cells may contain line breaks."""
    return _separated(path, ",")


def tsv_rows(path: Path) -> Rows:
    """Yield tab-separated rows, otherwise like comma-separated ones."""
    return _separated(path, "\t")


def _separated(path: Path, delimiter: str) -> Rows:
    csv.field_size_limit(LONGEST_CELL)
    with _opened(path) as file:
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        began = 1
        try:
            for cells in lines:
                where, began = f"line {began}", lines.line_num + 1
                if not cells:  # empty line
                    continue
                if header is None:
                    header = _header(cells, f"{path}, {where}", delimiter)
                    continue
                if len(cells) != len(header):
                    raise ValueError(
                        f"environment: {path}, {where} has {len(cells)} cells, and the header names {len(header)} "
                        f"columns; a cell that holds {delimiter!r}, a quote or a line break stands between quotes, and "
                        "quotes in it are doubled"
                    )
                yield where, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise ValueError(
                f"environment: {path}: the row that begins at line {began} cannot be read: {error}; see that its "
                "quotes end, and that quotes inside them are doubled"
            ) from error


def _header(cells: list[str], where: str, delimiter: str) -> list[str]:
    other = next((sign for sign in OTHERS if len(cells) == 1 and sign in cells[0]), "")
    if other:
        raise ValueError(
            f"environment: {where} names one column, {cut(repr(cells[0]), LONGEST_NAME)}: if {other!r} is to separate "
            f"columns, save the table with {delimiter!r} in its place" + (", or call it .tsv" if other == "\t" else "")
        )
    if (name := twice_in(cells)) is not None:
        raise ValueError(f"environment: {where}: two columns are called {cut(repr(name), LONGEST_NAME)}; rename one")
    return cells


def twice_in(names: Iterable[str]) -> str | None:
    """Return the first name with a second occurrence, or None without duplicates.

    >>> twice_in(["a", "b", "a", "b"])
    'a'
    """
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except _TwiceError as error:
        raise ValueError(f"environment: {where}: the key {error.args[0]} comes twice in one object") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"environment: {where} is not JSON: {error.msg}, at character {error.pos + 1}; {AN_OBJECT}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment: {where} is not JSON: {error}; {AN_OBJECT}") from error


class _TwiceError(Exception):
    """Duplicate key in a JSON object."""


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if (name := twice_in(key for key, _ in pairs)) is not None:
        raise _TwiceError(cut(repr(name), LONGEST_NAME))
    return dict(pairs)


def _an_object(entry: object, where: str) -> dict[str, object]:
    if not isinstance(entry, dict):
        raise ValueError(f"environment: {where} is a {type(entry).__name__}; {AN_OBJECT}")
    return entry


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a file as UTF-8, with or without a byte-order mark.

    Raises:
        ValueError: the file cannot be read, or is not UTF-8.
    """
    try:
        with regular(path).open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise ValueError(f"environment: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"environment: {path} is not UTF-8 ({error.reason}); save it as UTF-8") from error
