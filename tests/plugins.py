"""Plugins as a user would write them."""

from __future__ import annotations

from marft.config.plugins import Plugin
from marft.game.agents import Agents
from marft.types import Action, JointAction, Observation


class Reversed(Plugin):
    """A chain from the last agent to the first."""

    loud: bool = False

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        done: list[Action] = []
        for seat in reversed(list(agents)):
            done.append(await seat(observation, sees=done))
        return JointAction(answer=done[-1])
