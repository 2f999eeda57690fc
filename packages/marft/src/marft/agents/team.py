"""Team (LaMAS): the agents, and the organization that decides the order of actions and the visibility of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast, runtime_checkable

from marft.agents.agents import Agent, Agents
from marft.agents.channels.raw import Raw
from marft.agents.helpers import HelperConfig
from marft.agents.prompt_messages import Channel, TruncationPolicy
from marft.agents.tool_sources import ToolUse
from marft.common.prompt_history import PromptVersion
from marft.common.types import AgentProfile, JointAction, Observation, Task
from marft.config.agents import AgentSettings
from marft.config.run import RunSettings

AttachTools = Callable[[AgentSettings], tuple[AgentProfile, ToolUse]]


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

    def open(self, task: Task, seed: int) -> EpisodicOrganization:
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
    helpers: HelperConfig | None = None
    helper_callers: frozenset[str] = frozenset()  # roles of agents that may call helpers

    @staticmethod
    def from_settings(run: RunSettings, attach_tools: AttachTools) -> Team:
        """Build the team that a recipe describes.

        Args:
            attach_tools: returns an agent's profile with tools and skills added, and its tool limits.
        """
        agents = []
        for agent in run.agents:
            profile, tool_use = attach_tools(agent)
            cut = TruncationPolicy(agent.context.truncate, agent.context.keep)
            sampling = agent.sampling.to_sampling_params()
            agents.append(Agent(profile, agent.policy, sampling, cut, tool_use, agent.memory, agent.thinking))
        helper_settings = run.consulting
        return Team(
            tuple(agents),
            cast("Organization", run.team),
            cast("Channel", run.channel),
            HelperConfig.from_settings(helper_settings) if helper_settings else None,
            frozenset(helper_settings.roles(run)) if helper_settings else frozenset(),
        )

    def describe_helpers(self, may_ask: bool) -> Team:
        """Return the team with the helpers' announcement added, if the recipe requests it."""
        if self.helpers is None:
            return self
        describe = self.helpers.describe_helpers
        agents = (
            replace(a, profile=describe(a.profile, may_ask)) if a.role in self.helper_callers else a
            for a in self.agents
        )
        return replace(self, agents=tuple(agents))

    def with_policies(self, policies: Mapping[str, str]) -> Team:
        """Return the team with other policies for some roles."""
        if not policies:
            return self
        agents = (replace(agent, policy=policies.get(agent.role, agent.policy)) for agent in self.agents)
        return replace(self, agents=tuple(agents))

    def with_prompt_versions(self, versions: Sequence[PromptVersion], before: Mapping[str, str]) -> Team:
        """Return the team with new prompt versions for some roles; text that skills added to a profile stays.

        Args:
            versions: the new prompt versions, at most one per role.
            before: the recipe's instructions, by role. The team must still have these instructions.
        """
        new_versions = {version.role: version for version in versions}
        agents = (
            replace(agent, profile=_replace_instructions(agent.profile, new_versions[agent.role], before[agent.role]))
            if agent.role in new_versions
            else agent
            for agent in self.agents
        )
        return replace(self, agents=tuple(agents)) if new_versions else self

    def agent(self, role: str) -> Agent:
        """Return the agent with this role."""
        return next(agent for agent in self.agents if agent.role == role)


def _replace_instructions(profile: AgentProfile, version: PromptVersion, before: str) -> AgentProfile:
    added = profile.instructions.removeprefix(before).removeprefix("\n\n" if before else "")
    text = "\n\n".join(part for part in (version.instructions, added) if part)
    return replace(profile, instructions=text, version=version.number)
