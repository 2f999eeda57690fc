"""Episodes as Parquet: one row an action, with token ids, log-probs and what it depended on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marft.runs import atomic
from marft.types import Action, Episode

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("task", pa.string()),
        ("sample", pa.int32()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("success", pa.bool_()),
        ("total_reward", pa.float64()),
        ("episode_seconds", pa.float64()),
        ("step", pa.int32()),
        ("agent", pa.string()),
        ("call", pa.int32()),
        ("index", pa.int32()),
        ("policy", pa.string()),
        ("version", pa.int32()),
        ("sees", pa.list_(pa.string())),
        ("observation", pa.string()),
        ("text", pa.string()),
        ("finish", pa.string()),
        ("prompt", pa.list_(pa.int32())),
        ("tokens", pa.list_(pa.int32())),
        ("marks", pa.list_(pa.uint8())),
        ("log_probs", pa.list_(pa.float32())),
        ("state", pa.list_(pa.int32())),
        ("cut", pa.int32()),
        ("reward", pa.float64()),  # of the environment step
        ("agent_reward", pa.float64()),  # of this agent in the environment step
        ("started", pa.float64()),
        ("ended", pa.float64()),
    ]
)


def write_episodes(path: Path, episodes: Sequence[Episode]) -> None:
    """Write one file, atomically. An episode without actions (its environment failed early) is one row without one."""
    rows = [row for episode in episodes for row in _rows(episode)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    atomic.write_file(path, sink.getvalue().to_pybytes())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of one file, in the order written."""
    return list(pq.read_table(path).to_pylist())


def _rows(episode: Episode) -> list[dict[str, Any]]:
    whole = {
        "stream": episode.stream,
        "task": episode.task.id,
        "sample": episode.sample,
        "status": episode.status,
        "error": episode.error,
        "success": episode.success,
        "total_reward": episode.total_reward,
        "episode_seconds": episode.seconds,
    }
    if not episode.actions:
        return [{**whole, "observation": episode.task.prompt}]
    return [{**whole, **_action(episode, action)} for action in episode.actions]


def _action(episode: Episode, action: Action) -> dict[str, Any]:
    scored = action.step < len(episode.transitions)
    transition = episode.transitions[action.step] if scored else None
    return {
        "step": action.step,
        "agent": action.agent,
        "call": action.key.call,
        "index": action.index,
        "policy": action.policy,
        "version": action.version,
        "sees": list(action.sees),
        "observation": transition.observation.text if transition else episode.task.prompt,
        "text": action.text,
        "finish": action.finish,
        "prompt": action.prompt,
        "tokens": action.tokens,
        "marks": action.marks,
        "log_probs": action.log_probs,
        "state": action.state,
        "cut": action.cut,
        "reward": transition.reward if transition else None,
        "agent_reward": transition.agent_rewards.get(action.agent) if transition else None,
        "started": action.started,
        "ended": action.ended,
    }
