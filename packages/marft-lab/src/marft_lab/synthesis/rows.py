"""Imitation rows: episodes as traces, replayed traces as rows, and their files with a manifest, written atomically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marft.agents.prompt_messages import tool_call_messages
from marft.common import atomic
from marft.common.reasoning import measure_reasoning, strip_delimiters
from marft.common.types import Action, ActionKey, Episode
from marft.common.version import __version__
from marft.config.run import RunSettings
from marft.inference.chat_messages import tool_schema
from marft_lab.synthesis.candidates import Filter
from marft_lab.synthesis.filtering import FilterCounts
from marft_lab.synthesis.settings import SynthesisSettings
from marft_serve.traces.reader import MANIFEST, ROWS_FOLDER
from marft_serve.traces.replayer import ReplayedTrace, ReplayedTurn
from marft_serve.traces.types import TracedEpisode, TracedTurn
from marft_serve.tracing.messages import split_turns

FORMAT = "rows of MARFT, 1"


def to_trace(episode: Episode, seed: int) -> TracedEpisode:
    """Return an episode as a trace, with turns in the order of requests and the seed for a replay."""
    name = episode_name(episode)
    turns = [turn for action in episode.actions for turn in _turns(action, name)]
    return TracedEpisode(
        id=name,
        turns=tuple(turns),
        task=episode.task.id,
        answer="",
        reward=episode.total_reward,
        seed=seed,
        attempt=episode.sample,
        location=name,
    )


def episode_name(episode: Episode) -> str:
    """Return the name of an episode in rows."""
    return f"{episode.task.id} #{episode.sample}"


def _turns(action: Action, location: str) -> Iterator[TracedTurn]:
    turns = split_turns(action, action.started, action.ended)
    for number, turn in enumerate(turns):
        text = turn.text[action.response_prefix :] if len(turns) == 1 else turn.text
        size = measure_reasoning(text)
        yield TracedTurn(
            id=f"{action.id}/{number}",
            names=(action.agent,),
            messages=(),
            text=text[size:],
            reasoning=strip_delimiters(text[:size]),
            calls=tuple(call for call in turn.calls if call.name),
            start_time=float(action.index),
            complete=number < len(turns) - 1 or action.finish == "stop",
            location=f"{location}, {action.agent}",
        )


def build_rows(
    replayed: ReplayedTrace, original: Episode, number: int, origin: Mapping[str, object]
) -> Iterator[dict[str, object]]:
    """Yield an episode's rows, one per action.

    Args:
        replayed: episode as replayed by the recipe's team, with the recipe's prompts.
        original: episode as played by the teacher.
        number: index among the kept episodes.
        origin: source fields of the row.
    """
    by_action: dict[ActionKey, list[ReplayedTurn]] = {}
    for turn in replayed.turns:
        by_action.setdefault(turn.key, []).append(turn)
    own_rewards = dict.fromkeys((action.agent for action in original.actions), 0.0)
    for transition in original.transitions:
        for agent, reward in transition.agent_rewards.items():
            own_rewards[agent] = own_rewards.get(agent, 0.0) + reward
    for index, (key, turns) in enumerate(by_action.items()):
        first = turns[0].prompt
        row: dict[str, object] = {
            "order": [number, index],
            "episode": episode_name(original),
            "task": original.task.id,
            "agent": key.agent,
            "prompt": [dict(message) for message in first.chat],
            "completion": [message for turn in turns for message in _turn_messages(turn.turn)],
        }
        row |= {"tools": [tool_schema(tool) for tool in first.tools]} if first.tools else {}
        row |= {"reward": original.total_reward}
        row["from"] = {
            **origin,
            "task": original.task.id,
            "attempt": original.sample,
            "episode": episode_name(original),
            "role": key.agent,
            "action": f"{key.step}/{key.agent}/{key.call}",
            "reward": original.total_reward,
            "own_reward": own_rewards.get(key.agent, 0.0),
            "success": original.success,
        }
        yield row


def _turn_messages(turn: TracedTurn) -> Sequence[dict[str, Any]]:
    """Return a turn as messages: the assistant's text, and tool results."""
    messages = (
        tool_call_messages(turn.text, turn.calls) if turn.calls else [{"role": "assistant", "content": turn.text}]
    )
    if turn.reasoning:
        messages[0]["reasoning_content"] = turn.reasoning
    return messages


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """Result of a synthesis.

    Args:
        path: folder of the rows.
        rows: number of rows, by role.
        episodes: number of episodes behind the rows.
        stages: rejections of each stage.
    """

    path: Path
    rows: Mapping[str, int]
    episodes: int
    stages: Sequence[FilterCounts]


def write_rows(
    folder: Path,
    run: RunSettings,
    rows: Sequence[Mapping[str, Any]],
    source: Mapping[str, object],
    filters: Sequence[Filter],
    stages: Sequence[FilterCounts],
) -> SynthesisResult:
    """Write rows and manifest, and replace earlier files.

    Args:
        folder: run folder.
        run: settings of the run.
        rows: imitation rows.
        source: source fields of the rows.
        filters: filters of the run.
        stages: rejections of each stage.
    """
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(str(row["agent"]), []).append(json.dumps(row, ensure_ascii=False) + "\n")
    files = {f"{role}.jsonl": "".join(lines).encode() for role, lines in sorted(texts.items())}
    result = SynthesisResult(
        folder / ROWS_FOLDER,
        {role: len(lines) for role, lines in sorted(texts.items())},
        len({row["order"][0] for row in rows}),
        stages,
    )
    settings = SynthesisSettings.from_run(run)
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "recipe": run.name,
        **source,
        "asked": {key: getattr(settings, key) for key in ("tasks", "attempts", "max_per_task", "balance_by")},
        "settings": [part.model_dump(mode="json") for part in filters],
        "funnel": [{**asdict(stage), "kept": stage.kept_count} for stage in stages],
        "episodes": result.episodes,
        "rows": result.rows,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    with atomic.new_folder(result.path) as draft:
        for name, content in files.items():
            (draft / name).write_bytes(content)
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return result
