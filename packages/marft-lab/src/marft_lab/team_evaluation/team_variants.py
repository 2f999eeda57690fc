"""Team variants for the comparison: a single agent, muted agents, and replaced policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from marft.agents.agents import Agents
from marft.agents.prompt_messages import Channel, Message
from marft.agents.team import Team
from marft.common.types import JointAction, Observation


@dataclass(frozen=True, slots=True)
class SingleAgentTeam:
    """Organization with a single acting agent, which only sees the observation.

    Its teammates stay in the team without actions, so their reward terms keep their meaning.
    """

    role: str

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Return the single agent's action as the answer."""
        return JointAction(answer=await agents[self.role](observation))


@dataclass(frozen=True, slots=True)
class MutedChannel:
    """Channel that mutes some agents: no agent receives their messages, not even the author."""

    channel: Channel
    roles: tuple[str, ...]

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return the team channel's output for other messages, and None for messages of ``roles``.

        >>> from marft.agents.channels.raw import Raw
        >>> MutedChannel(Raw(), ("a",)).carry([Message("a", "no"), Message("b", "yes")])
        [None, Message(role='b', text='yes')]
        """
        carried = iter(self.channel.carry([message for message in messages if message.role not in self.roles]))
        return [None if message.role in self.roles else next(carried) for message in messages]


def with_single_agent(team: Team, role: str) -> Team:
    """Return a team with a single acting agent."""
    return replace(team, organization=SingleAgentTeam(role))


def with_muted_agents(team: Team, roles: Sequence[str]) -> Team:
    """Return a team with muted agents."""
    return replace(team, channel=MutedChannel(team.channel, tuple(roles)))


def with_replaced_policies(team: Team, policies: Mapping[str, str]) -> Team:
    """Return a team with replaced policies.

    Args:
        team: team.
        policies: replacement of each policy.
    """
    agents = tuple(replace(agent, policy=policies.get(agent.policy, agent.policy)) for agent in team.agents)
    return replace(team, agents=agents)
