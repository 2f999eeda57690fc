"""Helpers for organizations: concurrent actions and the choice between answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence

from marft.agents.agents import Agents, Seat
from marft.agents.answers import find_answer, text_said
from marft.common.types import Action


async def together(*calls: Awaitable[Action]) -> list[Action]:
    """Run requests concurrently and return the actions in request order; if one fails, cancel the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def closed_up(sees: Mapping[str, Sequence[str]], gone: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the visible roles after the removal of some; a removed role's sources take its place.

    >>> closed_up({"b": ("a",), "c": ("b",)}, ["b"])
    {'c': ('a',)}
    """
    found = {role: tuple(seen) for role, seen in sees.items()}
    for role in gone:
        through = found.pop(role, ())
        for agent, seen in found.items():
            closed = [other for one in seen for other in (through if one == role else (one,))]
            found[agent] = tuple(dict.fromkeys(other for other in closed if other not in (agent, role)))
    return found


def majority(actions: Sequence[Action]) -> Action:
    """Return the first action with the most frequent answer. Actions without an answer do not vote."""
    answers = [find_answer(text_said(action)) for action in actions]
    votes = Counter(filter(None, answers))
    return actions[answers.index(votes.most_common(1)[0][0])] if votes else actions[0]


def answering(agents: Agents) -> Seat:
    """Return the last agent with an answering profile."""
    return next(seat for seat in reversed(list(agents)) if seat.agent.profile.answers)
