"""Chain organization: one agent after another, in the recipe's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from marft.agents.agents import Agents
from marft.common.types import Action, JointAction, Observation
from marft.config.parts import OrganizationPart


class Chain(OrganizationPart):
    """Every agent acts once and sees the actions before its own.

    ::

        observation ──▶ planner ──▶ coder ──▶ tester ──▶ answer
              └────────────┴──────────┴─────────┘

    With ``sees = "previous"``, an agent sees only its predecessor. A chain of one is a single agent.
    """

    each_once: ClassVar[bool] = True  # every agent acts once per step
    sees: Literal["all", "previous"] = "all"  # visible actions: all before the agent's own, or only the previous one

    def answering_role(self, answering: Sequence[str]) -> str:
        """Return the only answering role, or "" with several."""
        return answering[0] if len(answering) == 1 else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        done: list[Action] = []
        for agent in agents:
            done.append(await agent(observation, sees=done if self.sees == "all" else done[-1:]))
        return JointAction()
