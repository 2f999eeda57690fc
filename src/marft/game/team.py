"""A team (LaMAS): the agents and the organization that says who acts, when, seeing what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from marft.config.run import RunSettings
from marft.game.agents import Agent, Agents
from marft.game.channels.raw import Raw
from marft.game.rendering import Channel, Cut
from marft.types import JointAction, Observation


class Organization(Protocol):
    """The dependency function D_t, as ordinary asyncio code."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction: ...


@dataclass(frozen=True, slots=True)
class Team:
    agents: tuple[Agent, ...]
    organization: Organization
    channel: Channel = Raw()

    @staticmethod
    def of(run: RunSettings) -> Team:
        """The team that a recipe describes."""
        agents = tuple(
            Agent(agent.profile, agent.policy, agent.sampling.resolve(), Cut(agent.context.cut, agent.context.keep))
            for agent in run.agents
        )
        return Team(agents, cast("Organization", run.team), cast("Channel", run.channel))

    def agent(self, role: str) -> Agent:
        return next(agent for agent in self.agents if agent.role == role)
