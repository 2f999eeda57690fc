"""Conversations in fine-tuning files and logs: one ``{"messages": […]}`` per line.

:mod:`marft_serve.traces.layouts` converts other formats to OpenAI's. The ``name`` of an assistant message, or
``agent`` in the line, names the agent. Consecutive lines with the same ``episode`` form one episode. A line may
also have two parts, ``{"prompt": […], "completion": […]}``. Then only the messages of the completion are turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marft.common.texts import storable
from marft.common.types import Task
from marft_serve.traces.layouts import messages_in
from marft_serve.traces.messages import TracedMessage, answered, chat, made, message_of, tools_of
from marft_serve.traces.record import MOST_TURNS, UNNAMED, Tally, TracedEpisode, TracedTurn, UnreadableError

TASK = ("task", "task_id", "id")  # fields for the task, in order of precedence
MOST_MESSAGES = 2048  # maximum number before a turn


def episodes(lines: Iterable[tuple[str, Mapping[str, Any]]], tally: Tally) -> Iterator[TracedEpisode]:
    """Yield a file's episodes as soon as each is complete.

    Args:
        lines: place and object of each line.
        tally: counter of skipped items.
    """
    open_name, number, whole = "", 0, None
    for place, table in lines:
        found = episode_of(table, place, tally)
        if found is None:
            continue
        name = _text(table.get("episode"))
        if whole and name and name == open_name:
            number += 1
            whole = _joined(whole, found, number, tally)
            continue
        if whole:
            yield whole
        open_name, number, whole = name, 0, found
    if whole:
        yield whole


def episode_of(table: Mapping[str, Any], place: str, tally: Tally) -> TracedEpisode | None:
    """Return a line's episode, or None without a turn to learn from."""
    messages = list[TracedMessage]()
    try:
        prompt, own = messages_in(table)
        for one in (*prompt, *own):
            messages.append(message_of(one))
    except UnreadableError as error:
        tally.skip("line", str(error), f"{place} message {len(messages) + 1}")
        return None
    messages = answered(messages)
    default = _text(table.get("agent")) or _text(table.get("role")) or UNNAMED
    named = [replace(m, name=m.name or default) if m.role == "assistant" else m for m in messages]
    turns = list(_turns(named, len(prompt), table, place, tally))
    if not turns:
        tally.skip("line", "no assistant says anything in it that could be read", place)
        return None
    metadata, origin = table.get("metadata"), table.get("from")
    known = origin if isinstance(origin, Mapping) else {}
    return TracedEpisode(
        id=_text(table.get("episode")) or _text(table.get("id")) or place,
        turns=tuple(turns),
        task=task_of(next((table[key] for key in TASK if table.get(key) is not None), "")),
        answer=next((turn.text for turn in reversed(turns) if not turn.calls), ""),
        reward=reward_of(table.get("reward")),
        seed=_count(known.get("seed")),
        attempt=_count(known.get("attempt")),
        metadata={_text(k): _text(v) for k, v in metadata.items()} if isinstance(metadata, Mapping) else {},
        place=place,
    )


def _turns(
    messages: Sequence[TracedMessage], first: int, table: Mapping[str, Any], place: str, tally: Tally
) -> Iterator[TracedTurn]:  # fmt: skip
    """Yield a conversation's turns.

    Args:
        messages: messages of the conversation.
        first: index of the first message that may be a turn.
        table: the line.
        place: file and line number.
        tally: counter of skipped items.
    """
    tools = tools_of(table.get("tools") or table.get("functions"))
    answers = {message.answers: message.text for message in messages if message.role == "tool"}
    said = [number for number, message in enumerate(messages) if message.role == "assistant" and number >= first]
    for number in said[MOST_TURNS:]:
        tally.skip("turn", f"its conversation has more than {MOST_TURNS} turns", f"{place} message {number + 1}")
    for number in said[:MOST_TURNS]:
        message = messages[number]
        if number > MOST_MESSAGES:  # each turn stores its whole prompt
            why = f"more than {MOST_MESSAGES} messages stand before it"
            tally.skip("turn", why, f"{place} message {number + 1}")
            continue
        try:
            asked = chat(messages[:number], message.name)
        except UnreadableError as error:
            tally.skip("turn", str(error), f"{place} message {number + 1}")
            continue
        calls, unanswered = made(
            message.calls, {n: answers[call.id] for n, call in enumerate(message.calls) if call.id in answers}
        )
        yield TracedTurn(
            id=str(number),
            names=(message.name,),
            messages=asked,
            text=message.text,
            thought=message.thought,
            calls=calls,
            unanswered=unanswered,
            tools=tools,
            model=_text(table.get("model")),
            weight=message.weight,
            place=place,
        )


def _joined(whole: TracedEpisode, later: TracedEpisode, number: int, tally: Tally) -> TracedEpisode:
    """Return an episode extended by a later line, the ``number``-th after its first."""
    room = MOST_TURNS - len(whole.turns)
    for turn in later.turns[room:]:
        tally.skip("turn", f"its episode has more than {MOST_TURNS} turns", turn.place)
    return replace(
        whole,
        turns=(*whole.turns, *(replace(turn, id=f"{number}/{turn.id}") for turn in later.turns[:room])),
        task=whole.task or later.task,
        answer=later.answer or whole.answer,  # a line that ends with tool calls has no answer
        reward=whole.reward if later.reward is None else later.reward,
    )


def task_of(value: object) -> str | Task:
    """Return the task of a trace: its id, or the whole task."""
    if isinstance(value, Mapping) and isinstance(value.get("prompt"), str):
        data = value.get("data")
        prompt = storable(value["prompt"])
        return Task(_text(value.get("id")) or prompt, prompt, dict(data) if isinstance(data, Mapping) else {})
    return _text(value)


def reward_of(value: object) -> float | None:
    """Convert a value to a finite number or None.

    >>> reward_of(1), reward_of("0.5"), reward_of(True), reward_of("good"), reward_of(float("nan"))
    (1.0, 0.5, 1.0, None, None)
    """
    try:
        found = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _text(value: object) -> str:
    return storable(str(value))[:1000] if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
