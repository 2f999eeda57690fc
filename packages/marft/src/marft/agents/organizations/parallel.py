"""Everybody at once, seeing nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from marft.agents.agents import Agents
from marft.agents.organizations.joining import majority, together
from marft.common.types import JointAction, Observation
from marft.config.parts import OrganizationPart


class Parallel(OrganizationPart):
    """Every agent acts at the same time on the observation alone: D = 0, the DEC-POMDP.

    ::

        observation ─┬─▶ solver_1 ─┐
                     ├─▶ solver_2 ─┼─▶ answer
                     └─▶ solver_3 ─┘

    ``answer = "last"`` is that of the last agent who answers, ``"vote"`` the most frequent one.
    """

    each_once: ClassVar[bool] = True  # every agent acts once a step
    answer: Literal["last", "vote"] = "last"  # that of the last agent who answers, or the most frequent one

    def answering_role(self, answering: Sequence[str]) -> str:
        """The only one that answers, where they do not vote."""
        return answering[0] if len(answering) == 1 and self.answer == "last" else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        actions = await together(*(seat(observation) for seat in agents))
        return JointAction(answer=majority(actions) if self.answer == "vote" else None)
