"""Episodes as Parquet: one row an action, with token ids, log-probs and what it depended on.

An action's columns are derived from the fields of :class:`marft.common.types.Action`; ``step``, ``agent``,
``observation`` and what the step earned stand beside them for those who read tables. What belongs to the whole episode
stands in every row of it where it is a number or a word, and in its first row alone where it is long (transitions, and
the final observation of a truncated one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marft.common import atomic
from marft.common.texts import storable
from marft.common.types import Action, Episode, Fork, Task, TokenIds, Transition
from marft.runs.columns import codec_of, codecs_of
from marft.runs.parquet import opened

ACTION = codecs_of(Action)
ADDED = {
    "restarts",
    "thought",
    "only_thought",
    "masks",
    "began",
    "answer",
    "imagined",
    "profile_version",
}  # columns that older files lack: there the field has its default
TOGETHER = 1024  # rows of a group: what is read for one episode
FORK = codec_of(Fork | None)
TRANSITIONS = codec_of(tuple[Transition, ...])
BOOTSTRAP = codec_of(Mapping[str, TokenIds])  # by agent
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("task", pa.string()),
        ("prompt_text", pa.string()),  # of the task
        ("sample", pa.int64()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("success", pa.bool_()),
        ("total_reward", pa.float64()),
        ("episode_seconds", pa.float64()),
        ("began", pa.float64()),  # seconds since 1970
        ("answer", pa.string()),  # id of an action; null where nobody asked the whole team
        ("imagined", pa.bool_()),
        ("fork", FORK.arrow),
        ("transitions", TRANSITIONS.arrow),
        ("bootstrap", BOOTSTRAP.arrow),
        ("step", pa.int64()),
        ("agent", pa.string()),
        ("observation", pa.string()),
        ("reward", pa.float64()),  # of the environment step
        ("agent_reward", pa.float64()),  # of this agent in the environment step
        *((name, codec.arrow) for name, codec in ACTION.items()),
    ]
)


def write_episodes(path: Path, episodes: Sequence[Episode]) -> None:
    """Write one file, atomically. An episode without actions (its environment failed early) is one row without one."""
    rows = [row for episode in episodes for row in _rows(episode)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, row_group_size=TOGETHER, compression="zstd", use_dictionary=False, write_page_checksum=True
    )
    atomic.write_file(path, sink.getvalue().to_pybytes())


def read_rows(path: Path, task: str = "") -> list[dict[str, object]]:
    """Rows of one file, in the order written; of one task alone where it is named."""
    filters = [("task", "=", task)] if task else None
    with opened(path) as source:
        return list(pq.read_table(source, filters=filters, page_checksum_verification=True).to_pylist())


def read_episodes(path: Path, task: str = "") -> list[Episode]:
    """Episodes of one file, as they were written but for the data of their tasks.

    Args:
        task: whose episodes are read; "" reads all.

    Raises:
        ValueError: the file is none of ours, or damaged.
    """
    if not path.is_file():
        raise ValueError(f"cannot read the episodes of {path}: it is no file")
    try:
        with opened(path) as source:
            missing = set(SCHEMA.names) - set(pq.read_schema(source).names) - ADDED
        rows = read_rows(path, task) if not missing else []
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the episodes of {path}: {str(error).strip()}") from error
    if missing:
        raise ValueError(f"{path} was recorded by another version of MARFT; train again to read its episodes")
    try:
        return [_episode(list(group)) for _, group in groupby(rows, lambda r: (r["stream"], r["task"], r["sample"]))]
    except TypeError as error:
        raise ValueError(f"cannot read the episodes of {path}: a value is missing ({error})") from error


def sessions_in(folder: Path) -> list[Path]:
    """Return the files of sessions that ``marft serve --record`` wrote to a folder, oldest first."""
    return sorted(folder.glob("sessions-*.parquet"))


def read_episode(path: Path, first: int, rows: int) -> Episode:
    """One episode of a file, of which no more is read than the row groups that it is in.

    Args:
        first: its first row.
        rows: how many it has.

    Raises:
        ValueError: the file is none of ours, or damaged, or has no such rows.
    """
    try:
        with opened(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            ends = list(accumulate(sizes))
            groups = [n for n, end in enumerate(ends) if end > first and end - sizes[n] < first + rows]
            table = file.read_row_groups(groups).slice(first - sum(sizes[: groups[0]]) if groups else 0, rows)
        found = table.to_pylist()
        if not 0 < rows == len(found):
            raise ValueError(f"{path} has no episode of {rows} rows at row {first}")
        return _episode(found)
    except (pa.ArrowException, OSError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"cannot read an episode of {path}: {str(error).strip()}") from error


def _rows(episode: Episode) -> list[dict[str, object]]:
    whole = {
        "stream": episode.stream,
        "task": episode.task.id,
        "prompt_text": storable(episode.task.prompt),
        "sample": episode.sample,
        "status": episode.status,
        "error": storable(episode.error),
        "success": episode.success,
        "total_reward": episode.total_reward,
        "episode_seconds": episode.seconds,
        "began": episode.began,
        "answer": episode.answer or None,
        "imagined": episode.imagined,
        "fork": FORK.write(episode.fork),
    }
    rows: list[dict[str, object]] = [{**whole, **_row_of(episode, action)} for action in episode.actions]
    rows = rows or [{**whole, "observation": whole["prompt_text"]}]
    rows[0]["bootstrap"] = BOOTSTRAP.write(episode.bootstrap)
    rows[0]["transitions"] = TRANSITIONS.write(episode.transitions)
    return rows


def _row_of(episode: Episode, action: Action) -> dict[str, object]:
    scored = action.step < len(episode.transitions)
    transition = episode.transitions[action.step] if scored else None
    return {
        "step": action.step,
        "agent": action.agent,
        "observation": storable(transition.observation.seen_by(action.agent) if transition else episode.task.prompt),
        "reward": transition.reward if transition else None,
        "agent_reward": transition.agent_rewards.get(action.agent) if transition else None,
        **{name: codec.write(getattr(action, name)) for name, codec in ACTION.items()},
    }


def _episode(rows: Sequence[Mapping[str, Any]]) -> Episode:
    first = rows[0]
    return Episode(
        task=Task(first["task"], first["prompt_text"]),
        stream=first["stream"],
        sample=first["sample"],
        actions=tuple(
            Action(**{name: codec.read(row[name]) for name, codec in ACTION.items() if name in row})
            for row in rows
            if row["agent"] is not None
        ),
        status=first["status"],
        transitions=TRANSITIONS.read(first["transitions"]),
        success=first["success"],
        error=first["error"],
        bootstrap=BOOTSTRAP.read(first["bootstrap"]),
        seconds=first["episode_seconds"],
        began=first.get("began") or 0.0,
        answer=first.get("answer") or "",
        imagined=bool(first.get("imagined")),
        fork=FORK.read(first["fork"]),
    )
