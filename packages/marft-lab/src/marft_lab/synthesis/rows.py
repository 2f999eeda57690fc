"""Conversion of episodes to traces, and of retold traces to imitation rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marft.agents.rendering import exchange
from marft.common.thoughts import bare_thought, thought
from marft.common.types import Action, ActionKey, Episode, Tool
from marft_serve.traces.record import TracedEpisode, TracedTurn
from marft_serve.traces.retelling import Retelling
from marft_serve.traces.stage import Told
from marft_serve.tracing.turns import turns_of


def traced(episode: Episode, seed: int) -> TracedEpisode:
    """Return an episode as a trace, with turns in the order of requests and the seed for a replay."""
    name = called(episode)
    turns = [turn for action in episode.actions for turn in _turns(action, name)]
    return TracedEpisode(
        id=name, turns=tuple(turns), task=episode.task.id, answer="", reward=episode.total_reward,
        seed=seed, attempt=episode.sample, place=name,
    )  # fmt: skip


def called(episode: Episode) -> str:
    """Return the name of an episode in rows."""
    return f"{episode.task.id} #{episode.sample}"


def _turns(action: Action, place: str) -> Iterator[TracedTurn]:
    turns = turns_of(action, action.started, action.ended)
    for number, turn in enumerate(turns):
        text = turn.text[action.response_prefix :] if len(turns) == 1 else turn.text
        size = thought(text)
        yield TracedTurn(
            id=f"{action.id}/{number}",
            names=(action.agent,),
            messages=(),
            text=text[size:],
            thought=bare_thought(text[:size]),
            calls=tuple(call for call in turn.calls if call.name),
            started=float(action.index),
            whole=number < len(turns) - 1 or action.finish == "stop",
            place=f"{place}, {action.agent}",
        )


def rows_of(told: Told, played: Episode, number: int, origin: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    """Yield an episode's rows, one per action.

    Args:
        told: episode as retold by the recipe's team, with the recipe's prompts.
        played: episode as played by the teacher.
        number: index among the kept episodes.
        origin: source fields of the row.
    """
    by_action: dict[ActionKey, list[Retelling]] = {}
    for one in told.said:
        by_action.setdefault(one.key, []).append(one)
    own = dict.fromkeys((action.agent for action in played.actions), 0.0)
    for transition in played.transitions:
        for agent, reward in transition.agent_rewards.items():
            own[agent] = own.get(agent, 0.0) + reward
    for index, (key, turns) in enumerate(by_action.items()):
        first = turns[0].prompt
        row: dict[str, Any] = {
            "order": [number, index],
            "episode": called(played),
            "task": played.task.id,
            "agent": key.agent,
            "prompt": [dict(message) for message in first.chat],
            "completion": [message for turn in turns for message in _said(turn.turn)],
        }
        row |= {"tools": [_offered(tool) for tool in first.tools]} if first.tools else {}
        row |= {"reward": played.total_reward}
        row["from"] = {
            **origin, "task": played.task.id, "attempt": played.sample, "episode": called(played), "role": key.agent,
            "action": f"{key.step}/{key.agent}/{key.call}", "reward": played.total_reward,
            "own_reward": own.get(key.agent, 0.0), "success": played.success,
        }  # fmt: skip
        yield row


def _said(turn: TracedTurn) -> Sequence[dict[str, Any]]:
    """Return a turn as messages: the assistant's text, and tool results."""
    messages = exchange(turn.text, turn.calls) if turn.calls else [{"role": "assistant", "content": turn.text}]
    if turn.thought:
        messages[0]["reasoning_content"] = turn.thought
    return messages


def _offered(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
