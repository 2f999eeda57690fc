"""Tables of Arrow: Parquet files, and folders that Hugging Face's ``save_to_disk`` has written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from marft.config.settings import did_you_mean
from marft.envs.text_tables import twice_in

Rows = Iterator[tuple[str, Mapping[str, object]]]


def parquet_rows(path: Path) -> Rows:
    """Rows of one Parquet file, counted from 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield from _numbered(file.iter_batches(), path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"environment: cannot read {path}: {_first_line(error)}") from error


def saved_rows(folder: Path, part: str) -> Rows:
    """Rows of a data set that was saved to a folder; of one of its parts, where it has several."""
    import pyarrow as pa

    try:
        if (folder / "dataset_dict.json").is_file():
            parts = [str(name) for name in _read(folder / "dataset_dict.json")["splits"]]
            if part not in parts:
                raise ValueError(f"environment: {folder} has no part {part!r}{did_you_mean(part, parts)}")
            folder = folder / part
        names = [str(file["filename"]) for file in _read(folder / "state.json")["_data_files"]]
        yield from _numbered((batch for name in names for batch in _stream(folder / Path(name).name)), folder)
    except (KeyError, TypeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"environment: {folder} is damaged, or save_to_disk has not written it ({error!r}); save it again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"environment: cannot read {folder}: {_first_line(error)}") from error


def _stream(path: Path) -> Iterator[object]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as batches:
        yield from batches


def _numbered(batches: Iterable[Any], path: Path) -> Rows:
    number = 0
    for batch in batches:
        if (name := twice_in(batch.schema.names)) is not None:
            raise ValueError(f"environment: {path}: two columns are called {name!r}; rename one")
        try:
            rows = batch.to_pylist()
        except (
            ArithmeticError,
            LookupError,
            ValueError,
        ) as error:  # dates, zones, texts
            raise ValueError(
                f"environment: {path}: rows {number + 1} to {number + batch.num_rows} hold what Python has no value "
                f"for: {type(error).__name__}: {_first_line(error)}; leave that column out, or write it as text"
            ) from error
        for cells in rows:
            number += 1
            yield f"row {number}", cells


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
