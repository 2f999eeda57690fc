"""Delivery of other agents' messages through the team's channel into an agent's prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from marft.agents.agents import Agent, Excerpt, Seen
from marft.agents.rendering import Channel, Message, PromptTooLongError, Renderer
from marft.common.errors import EpisodeFailedError
from marft.common.types import Action, Observation, Prompt

Passing = Callable[[Action, str], str]  # (action, its message text) → the text that other agents receive


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """Received message: the source action, the message after the channel and the text before the channel."""

    action: Action
    message: Message
    passed_on: str


def hear(passing: Passing, seen: Seen) -> Heard:
    """Return an action's message for other agents, before the channel."""
    action = seen.action if isinstance(seen, Excerpt) else seen
    text = passing(action, seen.text if isinstance(seen, Excerpt) else seen.message)
    return Heard(action, Message(action.agent, text), text)


def listen(channel: Channel, passing: Passing, sees: Sequence[Seen]) -> list[Heard]:
    """Return the messages that an agent reads from others, after the channel."""
    given = [hear(passing, other) for other in sees]
    carried = channel.carry([one.message for one in given])
    return [replace(one, message=message) for one, message in zip(given, carried, strict=True) if message is not None]


def tokens_of(renderer: Renderer, policy: str, heard: Sequence[Heard]) -> dict[str, int]:
    """Return the number of tokens read from each action, by action id."""
    tokens: dict[str, int] = {}
    for one in heard:
        tokens[one.action.id] = tokens.get(one.action.id, 0) + renderer.count(policy, one.message.text)
    return tokens


def render(renderer: Renderer, agent: Agent, observation: Observation, heard: Sequence[Heard], room: int) -> Prompt:
    """Return a prompt that leaves ``room`` tokens for the action.

    Raises:
        EpisodeFailedError: the prompt does not fit.
    """
    messages = [one.message for one in heard]
    try:
        return renderer.render(
            agent.policy, agent.profile, observation.seen_by(agent.role), messages, reserve=room, cut=agent.cut
        )
    except PromptTooLongError as error:
        raise EpisodeFailedError("failed", str(error)) from error
