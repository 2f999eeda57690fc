"""Delivery of other agents' messages through the team's channel into an agent's prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from marft.agents.agents import Agent, MessageOverride, VisibleAction
from marft.agents.prompt_messages import Channel, Message, PromptTooLongError, Renderer
from marft.common.errors import EpisodeFailedError
from marft.common.types import Action, Observation, Prompt

MessageTransform = Callable[[Action, str], str]  # (action, its message text) → the text that other agents receive


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedMessage:
    """Received message: the source action, the message after the channel and the text before the channel."""

    action: Action
    message: Message
    original_text: str


def build_message(transform: MessageTransform, visible: VisibleAction) -> ReceivedMessage:
    """Return an action's message for other agents, before the channel."""
    action = visible.action if isinstance(visible, MessageOverride) else visible
    text = transform(action, visible.text if isinstance(visible, MessageOverride) else visible.message)
    return ReceivedMessage(action, Message(action.agent, text), text)


def receive_messages(
    channel: Channel, transform: MessageTransform, sees: Sequence[VisibleAction]
) -> list[ReceivedMessage]:
    """Return the messages that an agent reads from others, after the channel."""
    received = [build_message(transform, visible) for visible in sees]
    carried = channel.carry([original.message for original in received])
    return [
        replace(original, message=message)
        for original, message in zip(received, carried, strict=True)
        if message is not None
    ]


def count_message_tokens(renderer: Renderer, policy: str, received: Sequence[ReceivedMessage]) -> dict[str, int]:
    """Return the number of tokens read from each action, by action id."""
    tokens: dict[str, int] = {}
    for message in received:
        tokens[message.action.id] = tokens.get(message.action.id, 0) + renderer.count(policy, message.message.text)
    return tokens


def render_prompt(
    renderer: Renderer, agent: Agent, observation: Observation, received: Sequence[ReceivedMessage], room: int
) -> Prompt:
    """Return a prompt that leaves ``room`` tokens for the action.

    Raises:
        EpisodeFailedError: the prompt does not fit.
    """
    messages = [entry.message for entry in received]
    try:
        return renderer.render(
            agent.policy, agent.profile, observation.for_role(agent.role), messages, reserve=room, cut=agent.cut
        )
    except PromptTooLongError as error:
        raise EpisodeFailedError("failed", str(error)) from error
