"""One agent after another, in the recipe's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from marft.agents.agents import Agents
from marft.common.types import Action, JointAction, Observation
from marft.config.parts import OrganizationPart


class Chain(OrganizationPart):
    """Every agent acts once, seeing the actions before its own.

    ::

        observation ──▶ planner ──▶ coder ──▶ tester ──▶ answer
              └────────────┴──────────┴─────────┘

    With ``sees = "previous"`` an agent sees its predecessor alone. A chain of one is a single agent.
    """

    each_once: ClassVar[bool] = True  # every agent acts once a step
    sees: Literal["all", "previous"] = "all"  # all actions before its own, or that of the one before

    def answering_role(self, answering: Sequence[str]) -> str:
        """The only one that answers."""
        return answering[0] if len(answering) == 1 else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        done: list[Action] = []
        for agent in agents:
            done.append(await agent(observation, sees=done if self.sees == "all" else done[-1:]))
        return JointAction()
