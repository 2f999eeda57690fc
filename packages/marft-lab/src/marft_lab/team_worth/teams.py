"""Teams that a team is held against: one agent alone, agents whom nobody hears, policies in other seats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from marft.agents.agents import Agents
from marft.agents.rendering import Channel, Message
from marft.agents.team import Team
from marft.common.types import JointAction, Observation


@dataclass(frozen=True, slots=True)
class Alone:
    """One agent answers, shown the observation and nothing else. Its teammates keep their seats and are never asked:
    so rewards of theirs mean what they did."""

    role: str

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        return JointAction(answer=await agents[self.role](observation))


@dataclass(frozen=True, slots=True)
class Unheard:
    """A channel that carries nothing of some agents: they act, and nobody reads it, they themselves included."""

    channel: Channel
    roles: tuple[str, ...]

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """What the team's own channel makes of the others' messages; None for those of ``roles``.

        >>> from marft.agents.channels.raw import Raw
        >>> Unheard(Raw(), ("a",)).carry([Message("a", "no"), Message("b", "yes")])
        [None, Message(role='b', text='yes')]
        """
        carried = iter(self.channel.carry([message for message in messages if message.role not in self.roles]))
        return [None if message.role in self.roles else next(carried) for message in messages]


def alone(team: Team, role: str) -> Team:
    """One agent of a team by itself."""
    return replace(team, organization=Alone(role))


def unheard(team: Team, roles: Sequence[str]) -> Team:
    """The same team, in which nobody reads what some agents say."""
    return replace(team, channel=Unheard(team.channel, tuple(roles)))


def reseated(team: Team, policies: Mapping[str, str]) -> Team:
    """The same seats, played by other policies.

    Args:
        policies: which policy plays in the place of which.
    """
    agents = tuple(replace(agent, policy=policies.get(agent.policy, agent.policy)) for agent in team.agents)
    return replace(team, agents=agents)
