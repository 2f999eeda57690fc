"""Team (LaMAS): the agents, and the organization that decides the order of actions and the visibility of messages."""

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
    """Organization: the dependency function D_t, as ordinary asyncio code."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one environment step: request actions from agents and select the answer."""
        ...


@runtime_checkable
class EpisodicOrganization(Organization, Protocol):
    """Organization with state for one episode: a transcript, the next speaker, a router's attempts.

    Each episode opens an organization of its own from the team's and closes it at the end. A fork's organization
    opens under the same seed and acts again on the recorded actions, which restores its state.
    """

    def opened(self, task: Task, seed: int) -> EpisodicOrganization:
        """Return a new organization for one episode."""
        ...

    def close(self) -> None:
        """Release the episode's state."""
        ...


@dataclass(frozen=True, slots=True)
class Team:
    """Team of agents with its organization, channel and helpers."""

    agents: tuple[Agent, ...]
    organization: Organization
    channel: Channel = Raw()
    consulting: Consulting | None = None
    consult: frozenset[str] = frozenset()  # roles of agents that may call helpers

    @staticmethod
    def of(run: RunSettings, equip: Equip) -> Team:
        """Build the team that a recipe describes.

        Args:
            equip: returns an agent's profile with tools and skills added, and its tool limits.
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
        """Return the team with the helpers' announcement added, if the recipe requests it."""
        if self.consulting is None:
            return self
        tells = self.consulting.tells
        agents = (replace(a, profile=tells(a.profile, may_ask)) if a.role in self.consult else a for a in self.agents)
        return replace(self, agents=tuple(agents))

    def played_by(self, policies: Mapping[str, str]) -> Team:
        """Return the team with other policies for some roles."""
        if not policies:
            return self
        agents = (replace(agent, policy=policies.get(agent.role, agent.policy)) for agent in self.agents)
        return replace(self, agents=tuple(agents))

    def instructed(self, versions: Sequence[Version], before: Mapping[str, str]) -> Team:
        """Return the team with new prompt versions for some roles; text that skills added to a profile stays.

        Args:
            versions: the new prompt versions, at most one per role.
            before: the recipe's instructions, by role. The team must still have these instructions.
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
        """Return the agent with this role."""
        return next(agent for agent in self.agents if agent.role == role)


def _retold(profile: Profile, version: Version, before: str) -> Profile:
    added = profile.instructions.removeprefix(before).removeprefix("\n\n" if before else "")
    text = "\n\n".join(part for part in (version.instructions, added) if part)
    return replace(profile, instructions=text, version=version.number)
