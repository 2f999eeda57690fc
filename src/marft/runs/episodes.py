"""Episodes as Parquet: one row an action, with token ids, log-probs and what it depended on.

What belongs to the whole episode stands in every row of it where it is a number or a word, and in its first row alone
where it is long (transitions, and the final observation of a truncated one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from marft import atomic
from marft.texts import storable
from marft.types import Action, ActionKey, Choice, Episode, Fork, Observation, Option, Task, ToolCall, Transition, Usage

Number = TypeVar("Number", np.int32, np.float32)

TRANSITION = pa.struct(
    [
        ("observation", pa.string()),
        ("reward", pa.float64()),
        ("agent_rewards", pa.map_(pa.string(), pa.float64())),
        ("terms", pa.map_(pa.string(), pa.float64())),
    ]
)
OPTION = pa.struct([("tokens", pa.list_(pa.int32())), ("normaliser", pa.float64()), ("log_prob", pa.float32())])
CALL = pa.struct(
    [
        ("name", pa.string()),
        ("arguments", pa.string()),
        ("output", pa.string()),
        ("error", pa.bool_()),
        ("seconds", pa.float64()),
        ("place", pa.int32()),
    ]
)
BOOTSTRAP = pa.struct([("agent", pa.string()), ("ids", pa.list_(pa.int32()))])
USAGE = pa.struct(
    [
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("cost", pa.float64()),
        ("retries", pa.int32()),
    ]
)
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("task", pa.string()),
        ("prompt_text", pa.string()),  # of the task
        ("sample", pa.int32()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("success", pa.bool_()),
        ("total_reward", pa.float64()),
        ("episode_seconds", pa.float64()),
        ("fork_origin", pa.string()),
        ("fork_at", pa.string()),
        ("transitions", pa.list_(TRANSITION)),
        ("bootstrap", pa.list_(BOOTSTRAP)),
        ("step", pa.int32()),
        ("agent", pa.string()),
        ("call", pa.int32()),
        ("index", pa.int32()),
        ("key_stream", pa.string()),  # the pass that sampled it: another one than the episode's where it was replayed
        ("key_sample", pa.int32()),
        ("policy", pa.string()),
        ("version", pa.int32()),
        ("sees", pa.list_(pa.string())),
        ("message_tokens", pa.list_(pa.int32())),
        ("observation", pa.string()),
        ("text", pa.string()),
        ("intermediate_texts", pa.list_(pa.string())),
        ("response_prefix", pa.int32()),
        ("finish", pa.string()),
        ("prompt", pa.list_(pa.int32())),
        ("tokens", pa.list_(pa.int32())),
        ("marks", pa.list_(pa.uint8())),
        ("log_probs", pa.list_(pa.float32())),
        ("teammate_log_probs", pa.list_(pa.float32())),
        ("options", pa.list_(OPTION)),  # where the action was chosen from a list
        ("chosen", pa.int32()),
        ("calls", pa.list_(CALL)),
        ("usage", USAGE),  # of a remote model
        ("state", pa.list_(pa.int32())),
        ("truncated_tokens", pa.int32()),
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


def read_episodes(path: Path) -> list[Episode]:
    """Episodes of one file, as they were written but for the data of their tasks.

    Raises:
        ValueError: the file is none of ours, or damaged.
    """
    if not path.is_file():
        raise ValueError(f"cannot read the episodes of {path}: it is no file")
    try:
        missing = set(SCHEMA.names) - set(pq.read_schema(path).names)
        rows = read_rows(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"cannot read the episodes of {path}: {error}") from error
    if missing:
        raise ValueError(f"{path} was recorded by another version of MARFT; train again to read its episodes")
    try:
        return [_episode(list(group)) for _, group in groupby(rows, lambda r: (r["stream"], r["task"], r["sample"]))]
    except TypeError as error:
        raise ValueError(f"cannot read the episodes of {path}: a value is missing ({error})") from error


def _rows(episode: Episode) -> list[dict[str, Any]]:
    fork = episode.fork
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
        "fork_origin": fork.origin if fork else None,
        "fork_at": fork.at if fork else None,
    }
    rows: list[dict[str, Any]] = [{**whole, **_action(episode, action)} for action in episode.actions]
    rows = rows or [{**whole, "observation": whole["prompt_text"]}]
    rows[0]["bootstrap"] = [{"agent": agent, "ids": ids} for agent, ids in episode.bootstrap.items()]
    rows[0]["transitions"] = [
        {
            "observation": storable(t.observation.text),
            "reward": t.reward,
            "agent_rewards": list(t.agent_rewards.items()),
            "terms": list(t.terms.items()),
        }
        for t in episode.transitions
    ]
    return rows


def _action(episode: Episode, action: Action) -> dict[str, Any]:
    scored = action.step < len(episode.transitions)
    transition = episode.transitions[action.step] if scored else None
    return {
        "step": action.step,
        "agent": action.agent,
        "call": action.key.call,
        "index": action.index,
        "key_stream": action.key.stream,
        "key_sample": action.key.sample,
        "policy": action.policy,
        "version": action.version,
        "sees": list(action.sees),
        "message_tokens": list(action.message_tokens),
        "observation": storable(transition.observation.text if transition else episode.task.prompt),
        "text": action.text,
        "intermediate_texts": list(action.intermediate_texts),
        "response_prefix": action.response_prefix,
        "finish": action.finish,
        "prompt": action.prompt,
        "tokens": action.tokens,
        "marks": action.marks,
        "log_probs": action.log_probs,
        "teammate_log_probs": action.teammate_log_probs,
        "options": _options(action.choice) if action.choice else None,
        "chosen": action.choice.chosen if action.choice else None,
        "calls": [asdict(call) for call in action.calls],
        "usage": asdict(action.usage) if action.usage else None,
        "state": action.state,
        "truncated_tokens": action.truncated_tokens,
        "reward": transition.reward if transition else None,
        "agent_reward": transition.agent_rewards.get(action.agent) if transition else None,
        "started": action.started,
        "ended": action.ended,
    }


def _episode(rows: Sequence[Mapping[str, Any]]) -> Episode:
    first = rows[0]
    return Episode(
        task=Task(first["task"], first["prompt_text"]),
        stream=first["stream"],
        sample=first["sample"],
        actions=tuple(_read_action(row) for row in rows if row["agent"] is not None),
        status=first["status"],
        transitions=tuple(
            Transition(Observation(t["observation"]), t["reward"], dict(t["agent_rewards"]), dict(t["terms"]))
            for t in first["transitions"]
        ),
        success=first["success"],
        error=first["error"],
        bootstrap={end["agent"]: np.array(end["ids"], np.int32) for end in first["bootstrap"]},
        seconds=first["episode_seconds"],
        fork=Fork(first["fork_origin"], first["fork_at"]) if first["fork_at"] is not None else None,
    )


def _read_action(row: Mapping[str, Any]) -> Action:
    return Action(
        key=ActionKey(row["key_stream"], row["task"], row["key_sample"], row["step"], row["agent"], row["call"]),
        policy=row["policy"],
        index=row["index"],
        sees=tuple(row["sees"]),
        message_tokens=tuple(row["message_tokens"]),
        prompt=np.array(row["prompt"], np.int32),
        tokens=np.array(row["tokens"], np.int32),
        marks=np.array(row["marks"], np.uint8),
        log_probs=np.array(row["log_probs"], np.float32),
        text=row["text"],
        intermediate_texts=tuple(row["intermediate_texts"]),
        response_prefix=row["response_prefix"],
        finish=row["finish"],
        version=row["version"],
        truncated_tokens=row["truncated_tokens"],
        started=row["started"],
        ended=row["ended"],
        choice=_read_choice(row["options"], row["chosen"]) if row["options"] else None,
        calls=tuple(ToolCall(**call) for call in row["calls"]),
        usage=Usage(**row["usage"]) if row["usage"] else None,
        state=_array(row["state"], np.int32),
        teammate_log_probs=_array(row["teammate_log_probs"], np.float32),
    )


def _options(choice: Choice) -> list[dict[str, Any]]:
    return [
        {"tokens": option.tokens, "normaliser": option.normaliser, "log_prob": log_prob}
        for option, log_prob in zip(choice.options, choice.log_probs, strict=True)
    ]


def _read_choice(options: Sequence[Mapping[str, Any]], chosen: int) -> Choice:
    return Choice(
        tuple(Option(np.array(option["tokens"], np.int32), option["normaliser"]) for option in options),
        chosen,
        np.array([option["log_prob"] for option in options], np.float32),
    )


def _array(values: Sequence[Any] | None, dtype: type[Number]) -> npt.NDArray[Number] | None:
    return None if values is None else np.array(values, dtype)
