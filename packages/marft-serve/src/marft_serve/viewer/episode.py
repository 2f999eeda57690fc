"""Recorded episode in the page's format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from marft.common.texts import cut
from marft.common.types import Action, Episode, ToolCall
from marft.evaluation.remembering import known_tokens
from marft.runs.episodes import read_episode
from marft_serve.viewer.browsing import listed
from marft_serve.viewer.library import MissingError, Run
from marft_serve.viewer.shelf import Indexed
from marft_serve.viewer.tokens import tokens_of

LONGEST = 200_000  # maximum length of a text, in characters
Known = Mapping[str, Mapping[str, Any]]  # recorded credit by action id


def read(file: Indexed, number: int) -> Episode:
    """Read an episode from a file.

    Raises:
        MissingError: the file has no episode with this number.
        ValueError: the file cannot be read.
    """
    if file.table is None or not 0 <= number < len(file):
        raise MissingError(f"step {file.of.name} has episodes 0 to {len(file) - 1}, not {number}")
    (row,) = file.table.select(["row", "rows"]).slice(number, 1).to_pylist()
    return read_episode(file.of.path, row["row"], row["rows"])


def action_of(episode: Episode, name: str) -> Action:
    """Find an action by its id.

    Raises:
        MissingError: the episode has no such action.
    """
    found = next((action for action in episode.actions if action.id == name), None)
    if found is None:
        raise MissingError(f"no action {name!r} in this episode")
    return found


def whole(run: Run, file: Indexed, number: int, episode: Episode, known: Known) -> dict[str, Any]:
    """Return an episode with all actions.

    Args:
        run: the run.
        file: the file with the episode.
        number: number of the episode in the file.
        episode: the episode.
        known: recorded credit by action id.
    """
    guards = run.log.guards_at(file.of.step) if isinstance(file.of.step, int) else []
    texts = [action.text for action in episode.actions if action.agent in run.written.answering]
    answer = (texts or [action.text for action in episode.actions] or [""])[-1]
    again = ["marft", "play", str(run.folder.path), "--again"]
    return {
        **listed(file, number, guards),
        "prompt": cut(episode.task.prompt, LONGEST),
        "answer": cut(answer, LONGEST),
        "transitions": [
            {
                "step": step,
                "observation": cut(one.observation.whole, LONGEST),
                "reward": one.reward,
                "agent_rewards": dict(one.agent_rewards),
                "terms": dict(one.terms),
                "declared": {name: value for name, value in asdict(one.declared).items() if value not in (None, {})},
            }
            for step, one in enumerate(episode.transitions)
        ],
        "actions": [
            _acted(episode, action, known.get(action.id, {}))
            | {"choice": choice_of(run, action)}
            | {"play_again": shlex.join([*again, f"{file.of.name}:{number}@{action.id}"])}
            for action in episode.actions
        ],
    }


def _acted(episode: Episode, action: Action, known: Mapping[str, Any]) -> dict[str, Any]:
    paid = episode.transitions[action.step].agent_rewards if action.step < len(episode.transitions) else {}
    said = {
        "id": action.id,
        "agent": action.agent,
        "policy": action.policy,
        "step": action.step,
        "call": action.key.call,
        "index": action.index,
        "sees": list(action.sees),
        "continues": list(action.continues),
        "restarted": action.restarted,
        "started": action.started,
        "ended": action.ended,
        "text": cut(action.text, LONGEST),
        "thought": action.thought,
        "finish": action.finish,
        "before": [cut(text, LONGEST) for text in action.intermediate_texts],
        "tokens": len(action.tokens),
        "prompt_tokens": len(action.prompt),
        "truncated_tokens": action.truncated_tokens,
        "calls": [_called(call) for call in action.calls],
        "agent_reward": paid.get(action.agent),
        "log_prob": _mean(action.log_probs),
    }
    return said | {name: _mean(known.get(name)) for name in ("advantage", "value", "entropy", "difference")}


def _called(call: ToolCall) -> dict[str, Any]:
    texts = {"arguments": cut(call.arguments, LONGEST), "output": cut(call.output, LONGEST)}
    return {"name": call.name, **texts, "error": call.error, "seconds": call.seconds, "round": call.round}


def _mean(values: Any) -> float | None:
    return float(np.mean(np.array(values, np.float64))) if values is not None and len(values) else None


def prompt_of(run: Run, episode: Episode, action: Action) -> dict[str, Any]:
    """Return an action's prompt with control tokens, and the location of its known parts."""
    text = run.written.prompt(action)
    if text is None:
        return {
            "text": "",
            "tokens": len(action.prompt),
            "known": 0,
            "spans": [],
            "problem": "its tokenizer is not here",
        }
    by_id = {other.id: other for other in episode.actions}
    text = cut(text, 4 * LONGEST)
    spans = _spans(run, text, episode, action, by_id)
    return {"text": text, "tokens": len(action.prompt), "known": known_tokens(action, by_id), "spans": spans}


def _spans(run: Run, text: str, episode: Episode, action: Action, by_id: Mapping[str, Action]) -> list[dict[str, Any]]:
    """Return the spans for profile, observations and messages, if unchanged in the prompt."""
    profile = next((agent["instructions"] for agent in run.agents if agent["role"] == action.agent), "")
    shown = [one.observation.seen_by(action.agent) for one in episode.transitions[: action.step + 1]] or [
        episode.task.prompt
    ]
    sought = [("profile", profile), *(("observation", one) for one in shown)]
    sought += [(f"action {seen}", by_id[seen].message) for seen in action.sees if seen in by_id]
    spans: list[dict[str, Any]] = []
    for of, part in sought:
        start = text.find(part.strip()) if part.strip() else -1
        if start >= 0:
            spans.append({"start": start, "end": start + len(part.strip()), "of": of})
    return sorted(spans, key=lambda span: (span["start"], -span["end"]))


def choice_of(run: Run, action: Action) -> dict[str, Any] | None:
    """Return an action's options as text if the tokenizer is available; None for an action without options."""
    if action.choice is None:
        return None
    decoder = run.written.tokenizer(action.policy)
    options = [
        decoder.decode(option.tokens.tolist(), skip_special_tokens=True) if decoder else f"option {number}"
        for number, option in enumerate(action.choice.options)
    ]
    return {"options": options, "chosen": action.choice.chosen, "log_probs": action.choice.log_probs.tolist()}


def tokens(run: Run, action: Action, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action's tokens with their recorded values."""
    return tokens_of(action, run.written.tokenizer(action.policy), dict(known))
