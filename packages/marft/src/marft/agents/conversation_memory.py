"""Delivery of other agents' messages through the team's channel into an agent's prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from marft.agents.agents import Agent, Request
from marft.agents.conversation import Conversation, Node, Template, strip_stop_string
from marft.agents.prompt_messages import ChatMessage, PromptTooLongError, Renderer, build_messages
from marft.common.errors import EpisodeFailedError
from marft.common.token_data import TokenSource
from marft.common.types import Action, Observation, Prompt, TokenIds
from marft.config.interfaces.channel import Channel, Message
from marft.config.interfaces.organization import MessageOverride, VisibleAction

MessageTransform = Callable[[Action, str], str]  # (action, its message text) → the text that other agents receive
CONTEXT_FULL = "the context is full: the oldest exchanges were left out"
REASONING_DROPPED = "its thoughts were dropped"
CONCURRENT_ACTIONS = "it acted several times at once, and remembers all of it"


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
    carried = channel.transform([original.message for original in received])
    return [
        replace(original, message=message)
        for original, message in zip(received, carried, strict=True)
        if message is not None
    ]


def count_message_tokens(renderer: Renderer, policy: str, received: Sequence[ReceivedMessage]) -> dict[str, int]:
    """Return the number of tokens read from each action, by action id."""
    tokens: dict[str, int] = {}
    for message in received:
        tokens[message.action.id] = tokens.get(message.action.id, 0) + renderer.count_tokens(
            policy, message.message.text
        )
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


@dataclass(frozen=True, slots=True, eq=False)
class PromptRequest:
    """Request for an action with its prompt.

    Args:
        received: messages that are new to the agent.
        new_messages: new messages of its chat, without the instructions.
        continues: ids of the agent's own actions in the prompt.
        visible: ``continues`` plus all actions that the agent saw for them.
        restart_reason: reason why the prompt does not continue the last own action, or "".
        from_client: whether a client sent the request with messages of its own.
    """

    prompt: Prompt
    received: Sequence[ReceivedMessage]
    new_messages: tuple[ChatMessage, ...] = ()
    continues: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    restart_reason: str = ""
    node: Node | None = None
    from_client: bool = False

    def count_read_tokens(self, renderer: Renderer, policy: str, begins: Action | None) -> dict[str, int]:
        """Return the ids of all actions in the prompt, with the number of tokens newly read from each."""
        tokens = {**dict.fromkeys(self.visible, 0), **count_message_tokens(renderer, policy, self.received)}
        if begins:
            tokens.setdefault(begins.id, 0)
        return tokens


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """The agent's action with its prompt.

    Args:
        received: (action id, text before the channel) of each message received.
        seen: ids of the actions that the agent saw.
        messages: the agent's text and tool calls, and the tool outputs.
        shortened_reason: reason if the messages contain less than the sampled text, or "".
        turn: node in the conversation.
        oldest_index: index in the episode of the oldest remembered action, if older ones were dropped for this action;
            0 if none were.
        size: approximate number of tokens.
    """

    action: Action
    new_messages: tuple[ChatMessage, ...]
    messages: tuple[ChatMessage, ...]
    shortened_reason: str
    received: frozenset[tuple[str, str]]
    seen: tuple[str, ...]
    turn: Node
    oldest_index: int
    size: int


class ConversationMemory:
    """Conversation memory for one agent in one episode.

    Args:
        transform: returns the text that this agent receives from another agent's action.
    """

    def __init__(self, agent: Agent, renderer: Renderer, channel: Channel, transform: MessageTransform) -> None:
        self.agent, self.renderer, self.channel, self.transform = agent, renderer, channel, transform
        self._conversation = Conversation(Template(renderer, agent.policy, agent.profile.tools))
        self._exchanges: dict[str, Exchange] = {}  # by action id

    def remembered_action_ids(self) -> tuple[str, ...]:
        """Return the ids of remembered actions, oldest first."""
        since = max((exchange.oldest_index for exchange in self._exchanges.values()), default=0)
        actions = [exchange.action for exchange in self._exchanges.values() if exchange.action.index >= since]
        return tuple(action.id for action in sorted(actions, key=lambda action: action.index))

    def build_request(self, request: Request, room: int, recorded: Action | None) -> PromptRequest:
        """Return the prompt for a request.

        Args:
            room: context tokens to reserve for the action.
            recorded: the recorded action in a replayed episode; the prompt then continues the same earlier actions.

        Raises:
            EpisodeFailedError: the prompt does not fit and may not be truncated.
        """
        if recorded is None or not all(name in self._exchanges for name in recorded.continues):
            return self._build_request(request, room, self.remembered_action_ids())
        prompt_request = self._build_request(request, room, recorded.continues)
        if not np.array_equal(prompt_request.prompt.ids, recorded.prompt):
            return prompt_request
        prompt = replace(prompt_request.prompt, truncated_tokens=recorded.truncated_tokens)
        return replace(prompt_request, prompt=prompt, restart_reason=recorded.restarted)

    def _build_request(self, request: Request, room: int, action_ids: tuple[str, ...]) -> PromptRequest:
        """Return the prompt for a request that continues the ``action_ids`` actions."""
        kept_ids, full_length = action_ids, 0
        while kept_ids:
            received = self._receive(request.sees, kept_ids)
            new_messages = self._new_messages(request.observation, received)
            node = self._build_node(kept_ids, new_messages)
            full_length = full_length or len(node.context)
            excess = len(node.context) - self._budget(room)
            if excess <= 0:
                truncated, tools = full_length - len(node.context), self.agent.profile.tools
                prompt = Prompt(node.context, truncated, node.conversation, tools)
                seen, reason = self._seen_ids(kept_ids), self._restart_reason(action_ids, kept_ids, node)
                return PromptRequest(prompt, received, new_messages, kept_ids, seen, reason, node)
            self._check_truncation(len(node.context), room)
            kept_ids = self._drop_oldest(kept_ids, excess)
        received = self._receive(request.sees, ())
        prompt = render_prompt(self.renderer, self.agent, request.observation, received, room)
        prompt = replace(prompt, truncated_tokens=max(prompt.truncated_tokens, full_length - len(prompt.ids)))
        node = self._conversation.add_messages(prompt.chat, self._conversation.root)
        new_messages, reason = prompt.chat[len(self._system_messages) :], CONTEXT_FULL if action_ids else ""
        return PromptRequest(prompt, received, new_messages, restart_reason=reason, node=node)

    def store(self, prompt_request: PromptRequest, action: Action, request: Request) -> None:
        """Store a finished action."""
        assert prompt_request.node is not None, "it was asked with this memory"
        turn_messages = tuple(self.renderer.turn_messages(action.policy, action))
        messages = tuple(map(self._strip_reasoning, turn_messages)) if self.agent.thinking == "drop" else turn_messages
        shortened_reason = REASONING_DROPPED if messages != turn_messages else ""
        begun = (request.begins.id,) if request.begins else ()
        since = 0
        if action.restarted == CONTEXT_FULL:
            since = self._exchanges[action.continues[0]].action.index if action.continues else action.index
        texts = [str(message["content"]) for message in prompt_request.new_messages]
        prompt_tokens = sum(self.renderer.count_tokens(action.policy, text) for text in texts)
        self._exchanges[action.id] = Exchange(
            action=action,
            new_messages=prompt_request.new_messages,
            messages=messages,
            shortened_reason=shortened_reason,
            received=frozenset((entry.action.id, entry.original_text) for entry in prompt_request.received),
            seen=tuple(entry.action.id for entry in prompt_request.received) + begun,
            turn=self._add_turn(prompt_request.node, messages, action, shortened_reason),
            oldest_index=since,
            size=prompt_tokens + len(action.tokens),
        )

    def critic_tokens(
        self, action_ids: tuple[str, ...], observation: Observation, received: Sequence[ReceivedMessage], room: int
    ) -> TokenIds | None:
        """Return the critic's token ids: the agent's conversation with these actions, or the longest suffix that fits.

        Return None if no suffix fits.
        """
        while action_ids:
            node = self._build_node(action_ids, self._new_messages(observation, received))
            excess = len(node.context) - self._budget(room)
            if excess <= 0:
                return node.context
            action_ids = self._drop_oldest(action_ids, excess)
        return None

    @cached_property
    def _system_messages(self) -> tuple[ChatMessage, ...]:
        return tuple(build_messages(self.agent.profile, "", ())[:-1])

    def _budget(self, room: int) -> int:
        return self.renderer.context_length(self.agent.policy) - room

    def _receive(self, sees: Sequence[VisibleAction], kept_ids: Sequence[str]) -> list[ReceivedMessage]:
        """Return the new messages from other agents: not in a kept exchange, and not the agent's own kept actions."""
        known_messages = {key for name in kept_ids for key in self._exchanges[name].received}
        new = []
        for seen in sees:
            message = build_message(self.transform, seen)
            if message.action.id not in kept_ids and (message.action.id, message.original_text) not in known_messages:
                new.append(seen)
        return receive_messages(self.channel, self.transform, new)

    def _new_messages(self, observation: Observation, received: Sequence[ReceivedMessage]) -> tuple[ChatMessage, ...]:
        profile = replace(self.agent.profile, instructions="")
        messages = [entry.message for entry in received]
        return tuple(build_messages(profile, observation.for_role(self.agent.role), messages))

    def _build_node(self, action_ids: Sequence[str], new: tuple[ChatMessage, ...]) -> Node:
        """Return the conversation node after these exchanges and the new messages."""
        node = self._conversation.root
        try:
            for name in action_ids:
                exchange = self._exchanges[name]
                told = self._opening_messages(node) + exchange.new_messages
                prompt_node = self._conversation.add_messages(told, node)
                reason = exchange.shortened_reason
                node = self._add_turn(prompt_node, exchange.messages, exchange.action, reason, sampled=False)
            return self._conversation.add_messages(self._opening_messages(node) + new, node)
        except ValueError as error:
            raise EpisodeFailedError("failed", f"{self.agent.role}: {error}") from error

    def _strip_reasoning(self, message: ChatMessage) -> ChatMessage:
        text = message["content"]
        if message["role"] != "assistant" or not isinstance(text, str):
            return message
        return {**message, "content": text[self.renderer.reasoning_length(self.agent.policy, text) :]}

    def _add_turn(
        self,
        prompt_node: Node,
        messages: tuple[ChatMessage, ...],
        action: Action,
        shortened_reason: str,
        sampled: bool = True,
    ) -> Node:
        """Add an action's turn after its prompt, or after its chat as last rendered.

        Raises:
            ValueError: the chat template cannot render the chat.
        """
        rendered_count = 0
        if action.restarts:
            last = action.restarts[-1]
            turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
            rendered_count = turns[last.turns]
            chat = (*prompt_node.conversation, *messages[:rendered_count])
            prompt_node = self._conversation.add_rendered(chat, last.reason, last.context if sampled else None)
        return self._conversation.add_turn(
            prompt_node, messages[rendered_count:], self._turn_ids(action), action.id, sampled, shortened_reason
        )

    def _turn_ids(self, action: Action) -> TokenIds:
        """Return the action's ids since its chat was last rendered, without the final stop string, [T]."""
        begins = action.segments[-1].start
        answered = np.flatnonzero(action.marks == TokenSource.TOOL)
        turn = max(begins, int(answered[-1]) + 1 if len(answered) else 0)
        stops = [stop for stop in self.agent.sampling.stop if isinstance(stop, str)]
        last_turn = strip_stop_string(self.renderer, action.policy, action.tokens[turn:], action.text, stops)
        return np.concatenate([action.tokens[begins:turn], last_turn])

    def _opening_messages(self, node: Node) -> tuple[ChatMessage, ...]:
        return self._system_messages if node is self._conversation.root else ()

    def _seen_ids(self, action_ids: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(seen for name in action_ids for seen in (*self._exchanges[name].seen, name)))

    def _drop_oldest(self, action_ids: tuple[str, ...], excess: int) -> tuple[str, ...]:
        """Drop the oldest exchanges, at least one, until they free about ``excess`` tokens."""
        while action_ids and excess > 0:
            excess -= self._exchanges[action_ids[0]].size
            action_ids = action_ids[1:]
        return action_ids

    def _check_truncation(self, length: int, room: int) -> None:
        if self.agent.cut.target == "none":
            context = self.renderer.context_length(self.agent.policy)
            raise EpisodeFailedError(
                "failed",
                f"agent {self.agent.role!r}: its conversation has {length} tokens, but the context of {context} leaves "
                f"{context - room} beside what it may write; raise the model's context, lower max_new_tokens, or allow "
                "cuts (agents.context.truncate)",
            )

    def _restart_reason(self, action_ids: Sequence[str], kept_ids: Sequence[str], node: Node) -> str:
        if node.previous is self._exchanges[kept_ids[-1]].turn:
            return ""
        return CONTEXT_FULL if len(kept_ids) < len(action_ids) else node.restart_reason or CONCURRENT_ACTIONS
