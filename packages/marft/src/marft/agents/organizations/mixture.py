"""Mixture of agents (Wang et al. 2024): layers of proposers, then an aggregator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marft.agents.agents import Agents
from marft.agents.organizations.joining import answering, together
from marft.common.types import Action, JointAction, Observation
from marft.config.parts import OrganizationPart
from marft.config.settings import Few


class MixtureOfAgents(OrganizationPart):
    """Everybody but the aggregator proposes, ``layers`` times, each layer seeing all of the one before; the agent that
    answers sees the last layer.

    ::

        layer 1   a   b   c
                  └─┬─┴─┬─┘      everybody sees all
        layer 2   a   b   c
                  └───┼───┘
                  aggregator ──▶ answer
    """

    layers: Few = 2  # of proposals

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """An aggregator alone."""
        if len(roles) < 2:
            yield "team: a mixture of agents needs proposers beside the agent that answers"

    def answering_role(self, answering: Sequence[str]) -> str:
        """The aggregator."""
        return answering[-1]

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        aggregator = answering(agents)
        layer: list[Action] = []
        for _ in range(self.layers):
            layer = await together(*(seat(observation, sees=layer) for seat in agents if seat.role != aggregator.role))
        return JointAction(answer=await aggregator(observation, sees=layer))
