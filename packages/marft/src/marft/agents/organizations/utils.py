"""Helpers for organizations: concurrent actions and the choice between answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence

from marft.agents.agents import AgentHandle, Agents
from marft.agents.answers import find_answer, graded_text
from marft.common.types import Action


async def gather_actions(*calls: Awaitable[Action]) -> list[Action]:
    """Run requests concurrently and return the actions in request order; if one fails, cancel the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def remove_roles(sees: Mapping[str, Sequence[str]], removed: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the visible roles after the removal of some; a removed role's sources take its place.

    >>> remove_roles({"b": ("a",), "c": ("b",)}, ["b"])
    {'c': ('a',)}
    """
    visible = {role: tuple(seen) for role, seen in sees.items()}
    for role in removed:
        through = visible.pop(role, ())
        for agent, seen in visible.items():
            closed = [source for seen_role in seen for source in (through if seen_role == role else (seen_role,))]
            visible[agent] = tuple(dict.fromkeys(source for source in closed if source not in (agent, role)))
    return visible


def majority_vote(actions: Sequence[Action]) -> Action:
    """Return the first action with the most frequent answer. Actions without an answer do not vote."""
    answers = [find_answer(graded_text(action)) for action in actions]
    counts = Counter(filter(None, answers))
    return actions[answers.index(counts.most_common(1)[0][0])] if counts else actions[0]


def answer_agent(agents: Agents) -> AgentHandle:
    """Return the last agent with an answering profile."""
    return next(handle for handle in reversed(list(agents)) if handle.agent.profile.answers)
