"""Parquet files of episodes: one row an action, with token IDs, log-probs and dependencies.

The columns of an action follow from the fields of :class:`marft.common.types.Action`. The columns ``step``, ``agent``,
``observation`` and the rewards of the step are added for readers of the table. Short episode data (numbers, words) is
repeated in every row. Long episode data is in the first row only: the transitions, and the final observation of a
truncated episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marft.common import atomic
from marft.common.texts import replace_surrogates
from marft.common.types import Action, Episode, Fork, Task, TokenIds, Transition
from marft.runs.codecs import get_codec, get_codecs
from marft.runs.parquet import open_parquet

ACTION_CODECS = get_codecs(Action)
OPTIONAL_COLUMNS = {
    "restarts",
    "thought",
    "only_thought",
    "masks",
    "began",
    "answer",
    "imagined",
    "profile_version",
}  # columns that older files lack; their fields get the default
ROW_GROUP_SIZE = 1024  # rows of a row group, the minimum that is read for one episode
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
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, row_group_size=ROW_GROUP_SIZE, compression="zstd", use_dictionary=False, write_page_checksum=True
    )
    atomic.write_file(path, sink.getvalue().to_pybytes())


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
        ValueError: the file is not an episode file, or is damaged.
    """
    if not path.is_file():
        raise ValueError(f"cannot read the episodes of {path}: it is no file")
    try:
        with open_parquet(path) as source:
            missing = set(SCHEMA.names) - set(pq.read_schema(source).names) - OPTIONAL_COLUMNS
        rows = read_rows(path, task) if not missing else []
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the episodes of {path}: {str(error).strip()}") from error
    if missing:
        raise ValueError(f"{path} was recorded by another version of MARFT; train again to read its episodes")
    try:
        return [_episode(list(group)) for _, group in groupby(rows, lambda r: (r["stream"], r["task"], r["sample"]))]
    except TypeError as error:
        raise ValueError(f"cannot read the episodes of {path}: a value is missing ({error})") from error


def list_sessions(folder: Path) -> list[Path]:
    """Return the session files that ``marft serve --record`` wrote to a folder, oldest first."""
    return sorted(folder.glob("sessions-*.parquet"))


def read_episode(path: Path, first: int, rows: int) -> Episode:
    """Read a single episode from a file, loading only its row groups.

    Args:
        first: index of its first row.
        rows: number of its rows.

    Raises:
        ValueError: the file is not an episode file, is damaged, or has no such rows.
    """
    try:
        with open_parquet(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            ends = list(accumulate(sizes))
            groups = [n for n, end in enumerate(ends) if end > first and end - sizes[n] < first + rows]
            table = file.read_row_groups(groups).slice(first - sum(sizes[: groups[0]]) if groups else 0, rows)
        table_rows = table.to_pylist()
        if not 0 < rows == len(table_rows):
            raise ValueError(f"{path} has no episode of {rows} rows at row {first}")
        return _episode(table_rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"cannot read an episode of {path}: {str(error).strip()}") from error


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
