"""Chain organization: one agent after another, in the recipe's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from marft.agents.agents import Agents
from marft.common.types import Action, JointAction, Observation
from marft.config.plugin_types import OrganizationPart


class Chain(OrganizationPart):
    """Every agent acts once and sees the actions before its own.

    ::

        observation ──▶ planner ──▶ coder ──▶ tester ──▶ answer
              └────────────┴──────────┴─────────┘

    With ``visible = "previous"``, an agent sees only its predecessor. A chain of one is a single agent.
    """

    single_action_each: ClassVar[bool] = True  # every agent acts once per step
    visible: Literal["all", "previous"] = "all"  # visible actions: all before the agent's own, or only the previous one

    def answer_role(self, candidates: Sequence[str]) -> str:
        """Return the only answering role, or "" with several."""
        return candidates[0] if len(candidates) == 1 else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        actions: list[Action] = []
        for agent in agents:
            actions.append(await agent(observation, sees=actions if self.visible == "all" else actions[-1:]))
        return JointAction()
