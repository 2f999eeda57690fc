"""Parallel organization: concurrent agents without messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from marft.agents.agents import Agents
from marft.agents.organizations.utils import gather_actions, majority_vote
from marft.common.types import JointAction, Observation
from marft.config.plugin_types import OrganizationPart


class Parallel(OrganizationPart):
    """Every agent acts concurrently on the observation alone: D = 0, the DEC-POMDP.

    ::

        observation ─┬─▶ solver_1 ─┐
                     ├─▶ solver_2 ─┼─▶ answer
                     └─▶ solver_3 ─┘

    ``answer = "last"`` uses the last answering agent's answer, ``"vote"`` the most frequent answer.
    """

    single_action_each: ClassVar[bool] = True  # every agent acts once per step
    answer: Literal["last", "vote"] = "last"  # the last answering agent's answer, or the most frequent answer

    def answer_role(self, candidates: Sequence[str]) -> str:
        """Return the only answering role, or "" with several or with a vote."""
        return candidates[0] if len(candidates) == 1 and self.answer == "last" else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        actions = await gather_actions(*(handle(observation) for handle in agents))
        return JointAction(answer=majority_vote(actions) if self.answer == "vote" else None)
