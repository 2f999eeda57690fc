"""Mixture of agents (Wang et al. 2024): layers of proposers, then an aggregator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marft.agents.agents import Agents
from marft.agents.organizations.joining import answering, together
from marft.common.types import Action, JointAction, Observation
from marft.config.parts import OrganizationPart
from marft.config.settings import Few


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

    layers: Few = 2  # number of proposal layers

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for an aggregator without proposers."""
        if len(roles) < 2:
            yield "team: a mixture of agents needs proposers beside the agent that answers"

    def answering_role(self, answering: Sequence[str]) -> str:
        """Return the aggregator's role."""
        return answering[-1]

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        aggregator = answering(agents)
        layer: list[Action] = []
        for _ in range(self.layers):
            layer = await together(*(seat(observation, sees=layer) for seat in agents if seat.role != aggregator.role))
        return JointAction(answer=await aggregator(observation, sees=layer))
