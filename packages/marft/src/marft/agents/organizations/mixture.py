"""Mixture of agents (Wang et al. 2024): layers of proposers, then an aggregator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marft.agents.agents import Agents
from marft.agents.organizations.utils import answer_agent, gather_actions
from marft.common.types import Action, JointAction, Observation
from marft.config.plugin_types import OrganizationPart
from marft.config.settings import SmallCount


class MixtureOfAgents(OrganizationPart):
    """All agents except the aggregator propose, ``layers`` times, and each layer sees the previous layer. The
    answering agent sees the last layer.

    ::

        layer 1   a   b   c
                  └─┬─┴─┬─┘      each sees all
        layer 2   a   b   c
                  └───┼───┘
                  aggregator ──▶ answer
    """

    layers: SmallCount = 2  # number of proposal layers

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for an aggregator without proposers."""
        if len(roles) < 2:
            yield "team: a mixture of agents needs proposers beside the agent that answers"

    def answer_role(self, candidates: Sequence[str]) -> str:
        """Return the aggregator's role."""
        return candidates[-1]

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        aggregator = answer_agent(agents)
        layer: list[Action] = []
        for _ in range(self.layers):
            layer = await gather_actions(
                *(handle(observation, sees=layer) for handle in agents if handle.role != aggregator.role)
            )
        return JointAction(answer=await aggregator(observation, sees=layer))
