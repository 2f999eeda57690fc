"""How agents come to know what others said: through the team's channel, into their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from marft.agents.agents import Agent, Excerpt, Seen
from marft.agents.rendering import Channel, Message, PromptTooLongError, Renderer
from marft.common.errors import EpisodeFailedError
from marft.common.types import Action, Observation, Prompt

Passing = Callable[[Action, str], str]  # what is heard of an action in which somebody said a text


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """An action, the message in which an agent came to know it, and what was passed on before the channel."""

    action: Action
    message: Message
    passed_on: str


def hear(passing: Passing, seen: Seen) -> Heard:
    """An action as it is passed on."""
    action = seen.action if isinstance(seen, Excerpt) else seen
    text = passing(action, seen.text if isinstance(seen, Excerpt) else seen.message)
    return Heard(action, Message(action.agent, text), text)


def listen(channel: Channel, passing: Passing, sees: Sequence[Seen]) -> list[Heard]:
    """What of others an agent comes to read, through the channel."""
    given = [hear(passing, other) for other in sees]
    carried = channel.carry([one.message for one in given])
    return [replace(one, message=message) for one, message in zip(given, carried, strict=True) if message is not None]


def tokens_of(renderer: Renderer, policy: str, heard: Sequence[Heard]) -> dict[str, int]:
    """Tokens that an agent reads of each action, by its id."""
    tokens: dict[str, int] = {}
    for one in heard:
        tokens[one.action.id] = tokens.get(one.action.id, 0) + renderer.count(policy, one.message.text)
    return tokens


def render(renderer: Renderer, agent: Agent, observation: Observation, heard: Sequence[Heard], room: int) -> Prompt:
    """A prompt that leaves ``room`` tokens for the action.

    Raises:
        EpisodeFailedError: it does not fit.
    """
    messages = [one.message for one in heard]
    try:
        return renderer.render(
            agent.policy, agent.profile, observation.seen_by(agent.role), messages, reserve=room, cut=agent.cut
        )
    except PromptTooLongError as error:
        raise EpisodeFailedError("failed", str(error)) from error
