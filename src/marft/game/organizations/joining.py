"""What organizations share: acting at the same time, and choosing between answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence

from marft.game.agents import Agents, Seat
from marft.game.answers import find_answer
from marft.types import Action


async def together(*calls: Awaitable[Action]) -> list[Action]:
    """Act at the same time → the actions, in the order of the calls. When one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def majority(actions: Sequence[Action]) -> Action:
    """The first action that gives the most frequent answer; an answer that was found beats none."""
    answers = [find_answer(action.message) for action in actions]
    votes = Counter(answer for answer in answers if answer is not None)
    return actions[answers.index(votes.most_common(1)[0][0])] if votes else actions[0]


def answering(agents: Agents) -> Seat:
    """The last seat whose profile says that it answers."""
    return next(seat for seat in reversed(list(agents)) if seat.agent.profile.answers)
