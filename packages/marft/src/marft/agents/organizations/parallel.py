"""Parallel organization: concurrent agents without messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from marft.agents.agents import Agents
from marft.agents.organizations.joining import majority, together
from marft.common.types import JointAction, Observation
from marft.config.parts import OrganizationPart


class Parallel(OrganizationPart):
    """Every agent acts concurrently on the observation alone: D = 0, the DEC-POMDP.

    ::

        observation ─┬─▶ solver_1 ─┐
                     ├─▶ solver_2 ─┼─▶ answer
                     └─▶ solver_3 ─┘

    ``answer = "last"`` uses the last answering agent's answer, ``"vote"`` the most frequent answer.
    """

    each_once: ClassVar[bool] = True  # every agent acts once per step
    answer: Literal["last", "vote"] = "last"  # the last answering agent's answer, or the most frequent answer

    def answering_role(self, answering: Sequence[str]) -> str:
        """Return the only answering role, or "" with several or with a vote."""
        return answering[0] if len(answering) == 1 and self.answer == "last" else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        actions = await together(*(seat(observation) for seat in agents))
        return JointAction(answer=majority(actions) if self.answer == "vote" else None)
