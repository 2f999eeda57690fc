"""Parquet files of episodes: one row an action, with token IDs, log-probs and dependencies.

The columns of an action follow from the fields of :class:`marft.common.types.Action`. The columns ``step``, ``agent``,
``observation`` and the rewards of the step are added for readers of the table. Short episode data (numbers, words) is
repeated in every row. Long episode data is in the first row only: the transitions, and the final observation of a
truncated episode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import accumulate, groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.texts import replace_surrogates
from marft.common.types import Action, Episode, Fork, Task, TokenIds, Transition

# columns that older files lack; their fields get the default
OPTIONAL_COLUMNS = {
    "restarts", "thought", "only_thought", "masks", "began", "answer", "imagined", "profile_version", "token_versions",
    "experts",
}  # fmt: skip
ROW_GROUP_SIZE = 1024  # rows of a row group, the minimum that is read for one episode


class Codec(NamedTuple):
    """Arrow type for a Python type, with conversions in both directions.

    >>> get_codec(tuple[int, ...]).arrow
    ListType(list<item: int64>)
    """

    arrow: pa.DataType
    write: Callable[[Any], object]
    read: Callable[[Any], Any]


def get_codec(hint: object) -> Codec:
    """Return the codec for a type.

    Supported are numbers, text, bytes, booleans, literals, arrays, ``X | None``, ``tuple[X, ...]``, mappings from text,
    and dataclasses or named tuples of these.

    Raises:
        TypeError: the type is not supported.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is Literal:
        return _SCALARS[str]
    if origin in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
        return _optional(get_codec(next(argument for argument in arguments if argument is not NoneType)))
    if origin is np.ndarray:
        return _array(get_args(arguments[1])[0])
    if origin is npt.NDArray:  # a type alias since numpy 2.5
        return _array(arguments[0])
    if origin is tuple and arguments[1:] == (...,):
        return _sequence(get_codec(arguments[0]))
    if origin is Mapping and arguments[0] is str:
        return _mapping(get_codec(arguments[1]))
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return _record(hint)
    raise TypeError(f"{hint} has no column")


def get_codecs(cls: type) -> dict[str, Codec]:
    """Return the codec for each field of a dataclass or named tuple, in order.

    Raises:
        TypeError: a field's type is not supported.
    """
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else list(getattr(cls, "_fields", ()))
    return {name: get_codec(hints[name]) for name in names}


def _identity(value: object) -> object:
    return value


_SCALARS: dict[object, Codec] = {
    str: Codec(pa.string(), replace_surrogates, _identity),
    int: Codec(pa.int64(), _identity, _identity),
    float: Codec(pa.float64(), _identity, _identity),
    bool: Codec(pa.bool_(), _identity, _identity),
    bytes: Codec(pa.binary(), _identity, _identity),
}


def _optional(inner: Codec) -> Codec:
    def skip_none(convert: Callable[[object], object]) -> Callable[[object], object]:
        return lambda value: None if value is None else convert(value)

    return Codec(inner.arrow, skip_none(inner.write), skip_none(inner.read))


def _array(dtype: type[np.generic]) -> Codec:
    return Codec(pa.list_(pa.from_numpy_dtype(dtype)), _identity, lambda values: np.array(values, dtype))


def _sequence(inner: Codec) -> Codec:
    return Codec(
        pa.list_(inner.arrow),
        lambda values: [inner.write(value) for value in values],
        lambda values: tuple(inner.read(value) for value in values),
    )


def _mapping(inner: Codec) -> Codec:
    return Codec(
        pa.map_(pa.string(), inner.arrow),
        lambda table: [(replace_surrogates(key), inner.write(value)) for key, value in table.items()],
        lambda pairs: {key: inner.read(value) for key, value in pairs},
    )


def _record(cls: type) -> Codec:
    """Return the codec for a class; fields missing in older rows get their defaults."""
    parts = get_codecs(cls)
    return Codec(
        pa.struct([(name, part.arrow) for name, part in parts.items()]),
        lambda value: {name: part.write(getattr(value, name)) for name, part in parts.items()},
        lambda row: cls(**{name: part.read(row[name]) for name, part in parts.items() if name in row}),
    )


def write_parquet(path: Path, table: pa.Table, **options: Any) -> int:
    """Write a compressed table with checksums atomically, and return its size in bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, **options)
    content = sink.getvalue().to_pybytes()
    atomic.write_file(path, content)
    return len(content)


def open_parquet(path: Path) -> pa.NativeFile:
    """Open a file for Arrow, which otherwise accepts UTF-8 paths only. Close it after use.

    Raises:
        OSError: the file cannot be opened.
    """
    return pa.OSFile(os.fsencode(path))


ACTION_CODECS = get_codecs(Action)
FORK_CODEC = get_codec(Fork | None)
TRANSITIONS_CODEC = get_codec(tuple[Transition, ...])
BOOTSTRAP_CODEC = get_codec(Mapping[str, TokenIds])  # by agent
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("task", pa.string()),
        ("prompt_text", pa.string()),  # prompt of the task
        ("sample", pa.int64()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("success", pa.bool_()),
        ("total_reward", pa.float64()),
        ("episode_seconds", pa.float64()),
        ("began", pa.float64()),  # seconds since 1970
        ("answer", pa.string()),  # action ID; null if no client queried the whole team
        ("imagined", pa.bool_()),
        ("fork", FORK_CODEC.arrow),
        ("transitions", TRANSITIONS_CODEC.arrow),
        ("bootstrap", BOOTSTRAP_CODEC.arrow),
        ("step", pa.int64()),
        ("agent", pa.string()),
        ("observation", pa.string()),
        ("reward", pa.float64()),  # team reward in the environment step
        ("agent_reward", pa.float64()),  # reward of this agent in the environment step
        *((name, codec.arrow) for name, codec in ACTION_CODECS.items()),
    ]
)


def write_episodes(path: Path, episodes: Sequence[Episode]) -> None:
    """Write episodes to a file, atomically.

    An episode without actions (its environment failed early) has one row without an action.
    """
    rows = [row for episode in episodes for row in _rows(episode)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    write_parquet(path, table, row_group_size=ROW_GROUP_SIZE, use_dictionary=False)


def read_rows(path: Path, task: str = "") -> list[dict[str, object]]:
    """Read a file's rows in order, optionally for a single task."""
    filters = [("task", "=", task)] if task else None
    with open_parquet(path) as source:
        return list(pq.read_table(source, filters=filters, page_checksum_verification=True).to_pylist())


def read_episodes(path: Path, task: str = "") -> list[Episode]:
    """Read the episodes in a file.

    Their tasks have no data, because files do not record it.

    Args:
        task: the ID of the task to read; "" reads all episodes.

    Raises:
        UserError: the file is not an episode file, or is damaged.
    """
    if not path.is_file():
        raise UserError(f"cannot read the episodes of {path}: it is no file")
    try:
        with open_parquet(path) as source:
            missing = set(SCHEMA.names) - set(pq.read_schema(source).names) - OPTIONAL_COLUMNS
        rows = read_rows(path, task) if not missing else []
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the episodes of {path}: {str(error).strip()}") from error
    if missing:
        raise UserError(f"{path} was recorded by another version of MARFT; train again to read its episodes")
    try:
        return [_episode(list(group)) for _, group in groupby(rows, lambda r: (r["stream"], r["task"], r["sample"]))]
    except TypeError as error:
        raise UserError(f"cannot read the episodes of {path}: a value is missing ({error})") from error


def list_serve_recordings(folder: Path) -> list[Path]:
    """Return the session files that ``marft serve --record`` wrote to a folder, oldest first."""
    return sorted(folder.glob("sessions-*.parquet"))


def read_episode(path: Path, first: int, rows: int) -> Episode:
    """Read a single episode from a file, loading only its row groups.

    Args:
        first: index of its first row.
        rows: number of its rows.

    Raises:
        UserError: the file is not an episode file, is damaged, or has no such rows.
    """
    try:
        with open_parquet(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            ends = list(accumulate(sizes))
            groups = [n for n, end in enumerate(ends) if end > first and end - sizes[n] < first + rows]
            table = file.read_row_groups(groups).slice(first - sum(sizes[: groups[0]]) if groups else 0, rows)
        table_rows = table.to_pylist()
        if not 0 < rows == len(table_rows):
            raise UserError(f"{path} has no episode of {rows} rows at row {first}")
        return _episode(table_rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise UserError(f"cannot read an episode of {path}: {str(error).strip()}") from error


def _rows(episode: Episode) -> list[dict[str, object]]:
    episode_columns = {
        "stream": episode.stream,
        "task": episode.task.id,
        "prompt_text": replace_surrogates(episode.task.prompt),
        "sample": episode.sample,
        "status": episode.status,
        "error": replace_surrogates(episode.error),
        "success": episode.success,
        "total_reward": episode.total_reward,
        "episode_seconds": episode.seconds,
        "began": episode.start_time,
        "answer": episode.answer or None,
        "imagined": episode.imagined,
        "fork": FORK_CODEC.write(episode.fork),
    }
    rows: list[dict[str, object]] = [{**episode_columns, **_action_row(episode, action)} for action in episode.actions]
    rows = rows or [{**episode_columns, "observation": episode_columns["prompt_text"]}]
    rows[0]["bootstrap"] = BOOTSTRAP_CODEC.write(episode.bootstrap)
    rows[0]["transitions"] = TRANSITIONS_CODEC.write(episode.transitions)
    return rows


def _action_row(episode: Episode, action: Action) -> dict[str, object]:
    scored = action.step < len(episode.transitions)
    transition = episode.transitions[action.step] if scored else None
    return {
        "step": action.step,
        "agent": action.agent,
        "observation": replace_surrogates(
            transition.observation.for_role(action.agent) if transition else episode.task.prompt
        ),
        "reward": transition.reward if transition else None,
        "agent_reward": transition.agent_rewards.get(action.agent) if transition else None,
        **{name: codec.write(getattr(action, name)) for name, codec in ACTION_CODECS.items()},
    }


def _episode(rows: Sequence[Mapping[str, Any]]) -> Episode:
    first = rows[0]
    return Episode(
        task=Task(first["task"], first["prompt_text"]),
        stream=first["stream"],
        sample=first["sample"],
        actions=tuple(
            Action(**{name: codec.read(row[name]) for name, codec in ACTION_CODECS.items() if name in row})
            for row in rows
            if row["agent"] is not None
        ),
        status=first["status"],
        transitions=TRANSITIONS_CODEC.read(first["transitions"]),
        success=first["success"],
        error=first["error"],
        bootstrap=BOOTSTRAP_CODEC.read(first["bootstrap"]),
        seconds=first["episode_seconds"],
        start_time=first.get("began") or 0.0,
        answer=first.get("answer") or "",
        imagined=bool(first.get("imagined")),
        fork=FORK_CODEC.read(first["fork"]),
    )
