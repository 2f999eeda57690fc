"""Conversion of episodes to traces, and of retold traces to imitation rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marft.agents.prompt_messages import tool_call_messages
from marft.common.reasoning import measure_reasoning, strip_delimiters
from marft.common.types import Action, ActionKey, Episode, Tool
from marft_serve.traces.replay import ReplayedTurn
from marft_serve.traces.replayer import ReplayedTrace
from marft_serve.traces.types import TracedEpisode, TracedTurn
from marft_serve.tracing.turns import split_turns


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
    retold: ReplayedTrace, original: Episode, number: int, origin: Mapping[str, object]
) -> Iterator[dict[str, Any]]:
    """Yield an episode's rows, one per action.

    Args:
        retold: episode as retold by the recipe's team, with the recipe's prompts.
        original: episode as played by the teacher.
        number: index among the kept episodes.
        origin: source fields of the row.
    """
    by_action: dict[ActionKey, list[ReplayedTurn]] = {}
    for retelling in retold.turns:
        by_action.setdefault(retelling.key, []).append(retelling)
    own_rewards = dict.fromkeys((action.agent for action in original.actions), 0.0)
    for transition in original.transitions:
        for agent, reward in transition.agent_rewards.items():
            own_rewards[agent] = own_rewards.get(agent, 0.0) + reward
    for index, (key, turns) in enumerate(by_action.items()):
        first = turns[0].prompt
        row: dict[str, Any] = {
            "order": [number, index],
            "episode": episode_name(original),
            "task": original.task.id,
            "agent": key.agent,
            "prompt": [dict(message) for message in first.chat],
            "completion": [message for turn in turns for message in _turn_messages(turn.turn)],
        }
        row |= {"tools": [_tool_schema(tool) for tool in first.tools]} if first.tools else {}
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


def _tool_schema(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
