"""Team (LaMAS): the agents, and the organization that decides the order of actions and the visibility of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from marft.agents.agents import Agent, ToolUse
from marft.agents.channels import Raw
from marft.agents.helpers import HelperConfig
from marft.agents.loop_threads import is_canceled
from marft.agents.prompt_messages import TruncationPolicy
from marft.agents.task_copies import copy_task
from marft.common.error_origin import describe_error
from marft.common.errors import EpisodeFailedError
from marft.common.prompt_history import PromptVersion
from marft.common.texts import display_name
from marft.common.types import AgentProfile, Task
from marft.config.agents import AgentSettings
from marft.config.interfaces.channel import Channel
from marft.config.interfaces.organization import Organization
from marft.config.run import RunSettings

AttachTools = Callable[[AgentSettings], tuple[AgentProfile, ToolUse]]


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
            run.team,
            run.channel,
            HelperConfig.from_settings(helper_settings) if helper_settings else None,
            frozenset(helper_settings.roles(run)) if helper_settings else frozenset(),
        )

    def describe_helpers(self, may_ask: bool) -> Team:
        """Return the team with the helpers' announcement added, if the recipe requests it."""
        if self.helpers is None:
            return self
        agents = list(self.agents)
        for index, agent in enumerate(agents):
            if agent.role in self.helper_callers:
                agents[index] = replace(agent, profile=self.helpers.describe_helpers(agent.profile, may_ask))
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


def open_organization(organization: Organization, task: Task, seed: int) -> Organization:
    """Return the organization that acts in an episode.

    Args:
        seed: the episode's seed; a fork uses its source episode's seed.

    Raises:
        EpisodeFailedError: ``open()`` raised, or returned an object without ``act()`` or ``close()``.
    """
    if type(organization).open is Organization.open:
        return organization
    caller = f"the organization {display_name(organization)}: open()"
    try:
        opened = organization.open(copy_task(task), seed)
    except BaseException as error:
        if is_canceled():
            raise
        raise EpisodeFailedError("failed", f"{caller} raised {describe_error(error)}") from error
    if not all(callable(getattr(opened, name, None)) for name in ("act", "close")):
        raise EpisodeFailedError("failed", f"{caller} gave a {type(opened).__name__}, which lacks act() or close()")
    return opened


def close_organization(team: Organization, episode: Organization) -> bool:
    """Close an episode's own organization; return false if closing raised. The episode's outcome does not change."""
    if episode is team:
        return True
    try:
        episode.close()
    except BaseException:
        if is_canceled():
            raise
        return False
    return True
