"""A team (LaMAS): the agents and the organization that says who acts, when, seeing what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast, runtime_checkable

from marft.agents.agents import Agent, Agents
from marft.agents.channels.raw import Raw
from marft.agents.consulting import Consulting
from marft.agents.rendering import Channel, Cut
from marft.agents.tool_sources import ToolUse
from marft.common.lineage import Version
from marft.common.types import JointAction, Observation, Profile, Task
from marft.config.agents import AgentSettings
from marft.config.run import RunSettings

Equip = Callable[[AgentSettings], tuple[Profile, ToolUse]]


class Organization(Protocol):
    """The dependency function D_t, as ordinary asyncio code."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """One environment step: let seats act, and say whose text is the answer."""
        ...


@runtime_checkable
class EpisodicOrganization(Organization, Protocol):
    """An organization with a state that lasts an episode: a transcript, whose turn it is, what a router has tried.

    Every episode asks the team's for one of its own, which acts and is closed when the episode is over. One that is
    played again up to a fork is opened under the same seed, and acts again on what was recorded: so its state is what
    it was.
    """

    def opened(self, task: Task, seed: int) -> EpisodicOrganization:
        """One of its own for an episode."""
        ...

    def close(self) -> None:
        """The episode is over."""
        ...


@dataclass(frozen=True, slots=True)
class Team:
    agents: tuple[Agent, ...]
    organization: Organization
    channel: Channel = Raw()
    consulting: Consulting | None = None
    consult: frozenset[str] = frozenset()  # roles that may ask helpers

    @staticmethod
    def of(run: RunSettings, equip: Equip) -> Team:
        """The team that a recipe describes.

        Args:
            equip: what tools and skills make of an agent's profile, and how it may use them.
        """
        agents = []
        for agent in run.agents:
            profile, tool_use = equip(agent)
            cut = Cut(agent.context.cut, agent.context.keep)
            sampling = agent.sampling.resolve()
            agents.append(Agent(profile, agent.policy, sampling, cut, tool_use, agent.memory, agent.thinking))
        helped = run.consulting
        return Team(
            tuple(agents),
            cast("Organization", run.team),
            cast("Channel", run.channel),
            Consulting.of(helped) if helped else None,
            frozenset(helped.roles(run)) if helped else frozenset(),
        )

    def told(self, may_ask: bool) -> Team:
        """The team whose agents are told of helpers as a recipe wants it, whether they may ask or not."""
        if self.consulting is None:
            return self
        tells = self.consulting.tells
        agents = (replace(a, profile=tells(a.profile, may_ask)) if a.role in self.consult else a for a in self.agents)
        return replace(self, agents=tuple(agents))

    def played_by(self, policies: Mapping[str, str]) -> Team:
        """The team with other policies in some of its roles."""
        if not policies:
            return self
        agents = (replace(agent, policy=policies.get(agent.role, agent.policy)) for agent in self.agents)
        return replace(self, agents=tuple(agents))

    def instructed(self, versions: Sequence[Version], before: Mapping[str, str]) -> Team:
        """The team that is told something else in some of its roles. What skills have added to a profile stays.

        Args:
            versions: what they are told, at most one of a role.
            before: the instructions that the recipe gives, by role; the team is the recipe's.
        """
        told = {version.role: version for version in versions}
        agents = (
            replace(agent, profile=_retold(agent.profile, told[agent.role], before[agent.role]))
            if agent.role in told
            else agent
            for agent in self.agents
        )
        return replace(self, agents=tuple(agents)) if told else self

    def agent(self, role: str) -> Agent:
        return next(agent for agent in self.agents if agent.role == role)


def _retold(profile: Profile, version: Version, before: str) -> Profile:
    added = profile.instructions.removeprefix(before).removeprefix("\n\n" if before else "")
    text = "\n\n".join(part for part in (version.instructions, added) if part)
    return replace(profile, instructions=text, version=version.number)
