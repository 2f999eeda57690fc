"""Arrow tables: Parquet files, and folders written by Hugging Face's ``save_to_disk``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marft.common.atomic import check_regular_file
from marft.config.settings import did_you_mean
from marft.envs.text_tables import find_duplicate

Rows = Iterator[tuple[str, Mapping[str, object]]]


def read_parquet(path: Path) -> Rows:
    """Yield the rows in a Parquet file, numbered from 1.

    Raises:
        ValueError: the file cannot be read, or has duplicate columns or unsupported values.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield from _number_rows(file.iter_batches(), path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"environment: cannot read {path}: {_first_line(error)}") from error


def read_saved_dataset(folder: Path, split: str) -> Rows:
    """Yield the rows in a saved data set or in one split.

    Raises:
        ValueError: the folder has no such split, is damaged, or cannot be read.
    """
    import pyarrow as pa

    try:
        if (folder / "dataset_dict.json").is_file():
            splits = [str(name) for name in _read_json(folder / "dataset_dict.json")["splits"]]
            if split not in splits:
                raise ValueError(f"environment: {folder} has no part {split!r}{did_you_mean(split, splits)}")
            folder = folder / split
        names = [str(file["filename"]) for file in _read_json(folder / "state.json")["_data_files"]]
        yield from _number_rows(
            (batch for name in names for batch in _stream_batches(folder / Path(name).name)), folder
        )
    except (KeyError, TypeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"environment: {folder} is damaged, or save_to_disk has not written it ({error!r}); save it again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"environment: cannot read {folder}: {_first_line(error)}") from error


def _stream_batches(path: Path) -> Iterator[object]:
    import pyarrow as pa

    with pa.memory_map(str(check_regular_file(path))) as source, pa.ipc.open_stream(source) as batches:
        yield from batches


def _number_rows(batches: Iterable[Any], path: Path) -> Rows:
    number = 0
    for batch in batches:
        if (name := find_duplicate(batch.schema.names)) is not None:
            raise ValueError(f"environment: {path}: two columns are called {name!r}; rename one")
        try:
            rows = _batch_rows(batch)
        except (
            ArithmeticError,
            LookupError,
            ValueError,
        ) as error:  # dates, time zones, texts
            raise ValueError(
                f"environment: {path}: rows {number + 1} to {number + batch.num_rows} hold what Python has no value "
                f"for: {type(error).__name__}: {_first_line(error)}; leave that column out, or write it as text"
            ) from error
        for cells in rows:
            number += 1
            yield f"row {number}", cells


def _batch_rows(batch: Any) -> list[dict[str, object]]:
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


def _has_short_floats(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_float16(kind) or types.is_float32(kind) or any(map(_has_short_floats, _component_types(kind)))


def _component_types(kind: Any) -> list[Any]:
    """Return the component types of a nested type."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return [kind.value_type]
    return [kind.field(index).type for index in range(kind.num_fields)]


def _shorten_floats(value: Any, kind: Any) -> Any:
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
