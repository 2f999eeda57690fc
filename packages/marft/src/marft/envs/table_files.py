"""Readers of tables: JSON, CSV, Parquet, and data sets of the datasets package, each row with its location."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from marft.common.atomic import check_regular_file
from marft.common.errors import UserError
from marft.common.packages import install_command
from marft.common.texts import truncate
from marft.config.settings import did_you_mean

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch

MAX_NAME_LENGTH = 200  # maximum characters of a column name in a message
MAX_CELL_LENGTH = 2**31 - 1  # maximum characters of a cell; the csv module's own limit is 131,072
OTHER_DELIMITERS = ";\t|"  # other delimiters in some files named .csv
OBJECT_HINT = 'a row is an object, such as {"question": "1 + 1?", "answer": "2"}'
Rows = Iterator[tuple[str, Mapping[str, object]]]


def read_jsonl(path: Path) -> Rows:
    """Yield JSON objects, one per nonempty line.

    Raises:
        UserError: a line is not a JSON object, or the file cannot be read; likewise for the other readers.
    """
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                location = f"{path}, line {number}"
                yield f"line {number}", _check_object(_parse_json(line, location), location)


def read_json(path: Path) -> Rows:
    """Yield the objects in a JSON array; a file with one object per line works too."""
    with _open_text(path) as file:
        text = file.read()
    if not text.lstrip().startswith("["):
        yield from read_jsonl(path)
        return
    for number, entry in enumerate(_parse_json(text, str(path)), 1):
        yield f"entry {number}", _check_object(entry, f"{path}, entry {number}")


def read_delimited(path: Path, delimiter: str) -> Rows:
    """Yield the rows; the first line names the columns, and quoted cells may contain line breaks."""
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
                    raise UserError(
                        f"environment: {path}, {position} has {len(cells)} cells, and the header names {len(header)} "
                        f"columns; a cell that holds {delimiter!r}, a quote or a line break stands between quotes, and "
                        "quotes in it are doubled"
                    )
                yield position, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise UserError(
                f"environment: {path}: the row that begins at line {start_line} cannot be read: {error}; see that its "
                "quotes end, and that quotes inside them are doubled"
            ) from error


def _check_header(cells: list[str], location: str, delimiter: str) -> list[str]:
    found_delimiter = next((sign for sign in OTHER_DELIMITERS if len(cells) == 1 and sign in cells[0]), "")
    if found_delimiter:
        raise UserError(
            f"environment: {location} names one column, {truncate(repr(cells[0]), MAX_NAME_LENGTH)}: if "
            f"{found_delimiter!r} is to separate columns, save the table with {delimiter!r} in its place"
            + (", or call it .tsv" if found_delimiter == "\t" else "")
        )
    if (name := find_duplicate(cells)) is not None:
        raise UserError(
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
        raise UserError(f"environment: {location}: the key {error.args[0]} comes twice in one object") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"environment: {location} is not JSON: {error.msg}, at character {error.pos + 1}; {OBJECT_HINT}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"environment: {location} is not JSON: {error}; {OBJECT_HINT}") from error


class _DuplicateKeyError(Exception):
    """Duplicate key in a JSON object."""


def _reject_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if (name := find_duplicate(key for key, _ in pairs)) is not None:
        raise _DuplicateKeyError(truncate(repr(name), MAX_NAME_LENGTH))
    return dict(pairs)


def _check_object(entry: object, location: str) -> dict[str, object]:
    if not isinstance(entry, dict):
        raise UserError(f"environment: {location} is a {type(entry).__name__}; {OBJECT_HINT}")
    return entry


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    """Open a file as UTF-8, with or without a byte-order mark.

    Raises:
        UserError: the file cannot be read, or is not UTF-8.
    """
    try:
        with check_regular_file(path).open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise UserError(f"environment: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"environment: {path} is not UTF-8 ({error.reason}); save it as UTF-8") from error


def read_parquet(path: Path) -> Rows:
    """Yield the rows in a Parquet file, numbered from 1.

    Raises:
        UserError: the file cannot be read, or has duplicate columns or unsupported values.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield from _number_rows(file.iter_batches(), path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"environment: cannot read {path}: {_first_line(error)}") from error


def read_saved_dataset(folder: Path, split: str) -> Rows:
    """Yield the rows in a saved data set or in one split.

    Raises:
        UserError: the folder has no such split, is damaged, or cannot be read.
    """
    import pyarrow as pa

    try:
        if (folder / "dataset_dict.json").is_file():
            splits = [str(name) for name in _read_json(folder / "dataset_dict.json")["splits"]]
            if split not in splits:
                raise UserError(f"environment: {folder} has no part {split!r}{did_you_mean(split, splits)}")
            folder = folder / split
        names = [str(file["filename"]) for file in _read_json(folder / "state.json")["_data_files"]]
        batches = (batch for name in names for batch in _stream_batches(folder / Path(name).name))
        yield from _number_rows(batches, folder)
    except (KeyError, TypeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(
            f"environment: {folder} is damaged, or save_to_disk has not written it ({error!r}); save it again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"environment: cannot read {folder}: {_first_line(error)}") from error


def _stream_batches(path: Path) -> Iterator[RecordBatch]:
    import pyarrow as pa

    with pa.memory_map(str(check_regular_file(path))) as source, pa.ipc.open_stream(source) as batches:
        yield from batches


def _number_rows(batches: Iterable[RecordBatch], path: Path) -> Rows:
    number = 0
    for batch in batches:
        if (name := find_duplicate(batch.schema.names)) is not None:
            raise UserError(f"environment: {path}: two columns are called {name!r}; rename one")
        try:
            rows = _batch_rows(batch)
        except (ArithmeticError, LookupError, ValueError) as error:  # dates, time zones, texts
            raise UserError(
                f"environment: {path}: rows {number + 1} to {number + batch.num_rows} hold what Python has no value "
                f"for: {type(error).__name__}: {_first_line(error)}; leave that column out, or write it as text"
            ) from error
        for cells in rows:
            number += 1
            yield f"row {number}", cells


def _batch_rows(batch: RecordBatch) -> list[dict[str, object]]:
    """Return the rows in a batch.

    Half- and single-precision numbers become the shortest decimal with the same value: 0.1, not
    0.10000000149011612. Arrow maps become dictionaries.
    """
    rows: list[dict[str, object]] = batch.to_pylist(maps_as_pydicts="strict")
    for field in batch.schema:
        if _has_short_floats(field.type):
            for row in rows:
                row[field.name] = _shorten_floats(row[field.name], field.type)
    return rows


def _has_short_floats(kind: DataType) -> bool:
    import pyarrow.types as types

    return types.is_float16(kind) or types.is_float32(kind) or any(map(_has_short_floats, _component_types(kind)))


def _component_types(kind: DataType) -> list[DataType]:
    """Return the component types of a nested type."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return [kind.value_type]
    return [kind.field(index).type for index in range(kind.num_fields)]


def _shorten_floats(value: object, kind: DataType) -> object:
    """Return a value with the shortest decimals for its half- and single-precision numbers."""
    import pyarrow.types as types

    component_types = _component_types(kind)
    if isinstance(value, float):
        kind = component_types[0] if component_types else kind
        short = np.float16 if types.is_float16(kind) else np.float32 if types.is_float32(kind) else float
        return float(str(short(value)))
    if isinstance(value, list):
        return [_shorten_floats(item, component_types[0]) for item in value]
    if isinstance(value, dict) and types.is_map(kind):
        return {key: _shorten_floats(item, kind.item_type) for key, item in value.items()}
    if isinstance(value, dict):
        return {name: _shorten_floats(item, kind.field(name).type) for name, item in value.items()}
    return value


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def read_dataset(path: str, subset: str, split: str) -> Iterable[Mapping[str, object]]:
    """Return the rows in one split.

    Args:
        path: id on the Hub, or a folder.
        subset: configuration name, or "" for the default.
        split: name of the split.

    Raises:
        UserError: the package is missing, or the data set cannot be loaded.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(
            f"environment: reading {path!r} needs the datasets package: {install_command('datasets')}; "
            "a .jsonl file needs nothing"
        ) from error
    try:
        rows: Iterable[Mapping[str, object]] = load_dataset(path, subset or None, split=split)
    except Exception as error:  # the package raises many types of errors for unreadable files
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"environment: cannot load data set {path!r}: {first_line}") from error
    return rows
