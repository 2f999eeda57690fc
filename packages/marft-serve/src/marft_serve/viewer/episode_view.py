"""Recorded episode in the page's format, and its tokens as text with their recorded values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from marft.common.texts import truncate
from marft.common.token_data import TokenSource
from marft.common.types import Action, Episode, ToolCall
from marft.evaluation.transcripts import count_known_tokens
from marft.runs.episode_files import read_episode
from marft_serve.viewer.episode_index import FileIndex
from marft_serve.viewer.episode_query import build_list_entry
from marft_serve.viewer.library import MissingError, Run

MAX_TOKENS = 20_000  # maximum number of shown tokens
MAX_TEXT_CHARS = 200_000  # maximum length of a text, in characters
CreditByAction = Mapping[str, Mapping[str, object]]  # recorded credit by action id


class Decoder(Protocol):
    """Tokenizer with a decode method."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids."""


def decode_tokens(decoder: Decoder, ids: Sequence[int]) -> list[str]:
    """Return each token's contribution to the text; a character made from several tokens goes to the last token.

    Each token is decoded together with the preceding token, since some tokenizers drop a leading space.
    """
    texts, context_start, start = (
        list[str](),
        0,
        0,
    )  # ids[start:] are pending; ids[before:start] precede them as context
    for end in range(1, len(ids) + 1):
        context = decoder.decode(ids[context_start:start], skip_special_tokens=False)
        decoded = decoder.decode(ids[context_start:end], skip_special_tokens=False)
        if decoded.endswith("\ufffd") and end - start < 8 and end < len(ids):
            texts.append("")
            continue
        texts.append(decoded[len(context) :])
        context_start, start = start, end
    return texts


def build_token_table(action: Action, decoder: Decoder | None, recorded: dict[str, object]) -> dict[str, object]:
    """Return an action's tokens, with one list entry per token.

    Args:
        action: the action.
        decoder: the tokenizer; None to show ids instead of text.
        recorded: recorded credit, with one number per decision, or a single number for the action.
    """
    ids = action.tokens[:MAX_TOKENS].tolist()
    texts = decode_tokens(decoder, ids) if decoder else [f"⟨{number}⟩" for number in ids]
    names = {mark.value: mark.name.lower() for mark in TokenSource}
    return {
        "tokens": texts,
        "marks": [names.get(mark, "tool") for mark in action.marks[:MAX_TOKENS].tolist()],
        "log_prob": spread_values(action, action.log_probs),
        **{
            name: None
            if (values := recorded.get(name)) is None
            else spread_values(action, np.array(values, np.float64))
            for name in ("advantage", "value", "entropy", "difference")
        },
        "left_out": max(0, len(action.tokens) - MAX_TOKENS),
    }


def spread_values(action: Action, decisions: npt.NDArray[Any]) -> list[float | None]:
    """Spread values from decisions to tokens; null for tokens without a decision.

    A single value for the whole action goes to each of its own tokens.
    """
    positions = np.flatnonzero(action.own_mask if action.choice or len(decisions) == 1 else action.sampled_mask)
    values: list[float | None] = [None] * len(action.tokens)
    numbers = decisions.tolist() * (len(positions) if len(decisions) == 1 else 1)
    for position, number in zip(positions.tolist(), numbers, strict=False):
        values[position] = float(number)
    return values[:MAX_TOKENS]


def load_episode(file: FileIndex, number: int) -> Episode:
    """Read an episode from a file.

    Raises:
        MissingError: the file has no episode with this number.
        ValueError: the file cannot be read.
    """
    if file.table is None or not 0 <= number < len(file):
        raise MissingError(f"step {file.file.name} has episodes 0 to {len(file) - 1}, not {number}")
    (row,) = file.table.select(["row", "rows"]).slice(number, 1).to_pylist()
    return read_episode(file.file.path, row["row"], row["rows"])


def find_action(episode: Episode, name: str) -> Action:
    """Find an action by its id.

    Raises:
        MissingError: the episode has no such action.
    """
    match = next((action for action in episode.actions if action.id == name), None)
    if match is None:
        raise MissingError(f"no action {name!r} in this episode")
    return match


def build_episode(
    run: Run, file: FileIndex, number: int, episode: Episode, credit: CreditByAction
) -> dict[str, object]:
    """Return an episode with all actions.

    Args:
        run: the run.
        file: the file with the episode.
        number: number of the episode in the file.
        episode: the episode.
        credit: recorded credit by action id.
    """
    texts = [action.text for action in episode.actions if action.agent in run.written.answer_roles]
    answer = (texts or [action.text for action in episode.actions] or [""])[-1]
    command = ["marft", "play", str(run.folder.path), "--fork-from"]
    return {
        **build_list_entry(file, number, run.get_active_guards(file)),
        "prompt": truncate(episode.task.prompt, MAX_TEXT_CHARS),
        "answer": truncate(answer, MAX_TEXT_CHARS),
        "transitions": [
            {
                "step": step,
                "observation": truncate(transition.observation.full_text, MAX_TEXT_CHARS),
                "reward": transition.reward,
                "agent_rewards": dict(transition.agent_rewards),
                "terms": dict(transition.terms),
                "declared": {
                    name: value for name, value in asdict(transition.declared).items() if value not in (None, {})
                },
            }
            for step, transition in enumerate(episode.transitions)
        ],
        "actions": [
            _build_action(episode, action, credit.get(action.id, {}))
            | {"choice": build_choice(run, action)}
            | {"play_again": shlex.join([*command, f"{file.file.name}:{number}@{action.id}"])}
            for action in episode.actions
        ],
    }


def _build_action(episode: Episode, action: Action, credit: Mapping[str, object]) -> dict[str, object]:
    step_rewards = episode.transitions[action.step].agent_rewards if action.step < len(episode.transitions) else {}
    fields = {
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
        "text": truncate(action.text, MAX_TEXT_CHARS),
        "thought": action.thought,
        "finish": action.finish,
        "before": [truncate(text, MAX_TEXT_CHARS) for text in action.intermediate_texts],
        "tokens": len(action.tokens),
        "prompt_tokens": len(action.prompt),
        "truncated_tokens": action.truncated_tokens,
        "calls": [_build_call(call) for call in action.calls],
        "agent_reward": step_rewards.get(action.agent),
        "log_prob": _mean(action.log_probs),
    }
    return fields | {name: _mean(credit.get(name)) for name in ("advantage", "value", "entropy", "difference")}


def _build_call(call: ToolCall) -> dict[str, object]:
    texts = {"arguments": truncate(call.arguments, MAX_TEXT_CHARS), "output": truncate(call.output, MAX_TEXT_CHARS)}
    return {"name": call.name, **texts, "error": call.error, "seconds": call.seconds, "round": call.round}


def _mean(values: Any) -> float | None:
    return float(np.mean(np.array(values, np.float64))) if values is not None and len(values) else None


def build_prompt(run: Run, episode: Episode, action: Action) -> dict[str, object]:
    """Return an action's prompt with control tokens, and the location of its known parts."""
    text = run.written.decode_prompt(action)
    if text is None:
        return {
            "text": "",
            "tokens": len(action.prompt),
            "known": 0,
            "spans": [],
            "problem": "its tokenizer is not here",
        }
    by_id = {listed_action.id: listed_action for listed_action in episode.actions}
    text = truncate(text, 4 * MAX_TEXT_CHARS)
    spans = _find_spans(run, text, episode, action, by_id)
    return {"text": text, "tokens": len(action.prompt), "known": count_known_tokens(action, by_id), "spans": spans}


def _find_spans(
    run: Run, text: str, episode: Episode, action: Action, by_id: Mapping[str, Action]
) -> list[dict[str, object]]:
    """Return the spans for profile, observations and messages, if unchanged in the prompt."""
    profile = next((agent["instructions"] for agent in run.agents if agent["role"] == action.agent), "")
    observations = [item.observation.for_role(action.agent) for item in episode.transitions[: action.step + 1]] or [
        episode.task.prompt
    ]
    parts = [("profile", profile), *(("observation", item) for item in observations)]
    parts += [(f"action {seen}", by_id[seen].message) for seen in action.sees if seen in by_id]
    spans = list[tuple[int, int, str]]()
    for label, part in parts:
        start = text.find(part.strip()) if part.strip() else -1
        if start >= 0:
            spans.append((start, start + len(part.strip()), label))
    spans.sort(key=lambda span: (span[0], -span[1]))
    return [{"start": start, "end": end, "of": label} for start, end, label in spans]


def build_choice(run: Run, action: Action) -> dict[str, object] | None:
    """Return an action's options as text if the tokenizer is available; None for an action without options."""
    if action.choice is None:
        return None
    decoder = run.written.get_tokenizer(action.policy)
    options = [
        decoder.decode(option.tokens.tolist(), skip_special_tokens=True) if decoder else f"option {number}"
        for number, option in enumerate(action.choice.options)
    ]
    return {"options": options, "chosen": action.choice.chosen, "log_probs": action.choice.log_probs.tolist()}


def build_tokens(run: Run, action: Action, credit: Mapping[str, object]) -> dict[str, object]:
    """Return an action's tokens with their recorded values."""
    return build_token_table(action, run.written.get_tokenizer(action.policy), dict(credit))
