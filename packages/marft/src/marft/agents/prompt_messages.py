"""Messages of an agent's prompt, and the interface that turns them into tokens.

The prompt of a rollout observation is [profile + observation + dependencies (+ guidance)]. This module writes it as
messages and knows no tokenizer. A :class:`Renderer` turns messages into token ids:
:class:`marft.inference.renderer.ChatRenderer`, through the chat template of each policy's model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from marft.common.errors import UserError
from marft.common.reasoning import StopString
from marft.common.texts import parse_json_text
from marft.common.token_data import Grammar
from marft.common.types import Action, AgentProfile, Prompt, TokenIds, Tool, ToolCall
from marft.config.interfaces.channel import Message

if TYPE_CHECKING:
    from marft.agents.chat import Chat
    from marft.agents.streaming import TextStream

_MESSAGE_HEADER = re.compile(r"(?:\A|\n\n)Message from (\w+):\n")  # see :func:`format_message`
NO_TOKENS = np.empty(0, np.int32)  # no tokens, [0]
ChatMessage = Mapping[str, object]  # role and content, in the format of chat templates and chat endpoints


def format_message(message: Message) -> str:
    """Return a teammate's message as a prompt shows it."""
    return f"Message from {message.role}:\n{message.text}"


def split_messages(prompt: str) -> tuple[str, list[Message]]:
    """Return a prompt's text before its first message, and its messages. Guidance belongs to the last message.

    >>> split_messages("2 + 3 =\\n\\nMessage from reasoner:\\nIt is 5.")
    ('2 + 3 =', [Message(role='reasoner', text='It is 5.')])
    """
    before, *parts = _MESSAGE_HEADER.split(prompt)
    return before, [Message(role, text) for role, text in zip(parts[::2], parts[1::2], strict=True)]


@dataclass(frozen=True, slots=True)
class TruncationPolicy:
    """Truncation policy for a rollout observation that does not fit.

    ``target`` selects the part to truncate: ``messages`` (the oldest first, then the observation), ``observation``
    (then the messages), or ``none``. ``keep`` selects the part of a truncated text that remains.
    """

    target: Literal["messages", "observation", "none"] = "messages"
    keep: Literal["start", "end"] = "end"


class PromptTooLongError(UserError):
    """Rollout observation too long for the model's context, with truncation disabled."""


@dataclass(frozen=True, slots=True)
class InexactContinuation:
    """Reason why a conversation cannot be extended exactly as its chat template would render it.

    Args:
        always: true if no conversation in this template can be continued, whatever its content.
    """

    reason: str
    always: bool = False


class Renderer(Protocol):
    """Renderer from an agent's input to token ids of its policy's model."""

    def render(
        self,
        policy: str,
        profile: AgentProfile,
        observation: str,
        seen: Sequence[Message],
        *,
        reserve: int,
        cut: TruncationPolicy,
    ) -> Prompt:
        """Render a prompt that leaves ``reserve`` tokens of the context for the action.

        Raises:
            PromptTooLongError: the prompt does not fit, even after all permitted truncation.
        """

    def tokenize_prompt(self, policy: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> TokenIds:
        """Return the token ids of a conversation, up to the start of the agent's next turn, [T].

        Raises:
            UserError: the model's chat template cannot render the conversation.
        """

    def continue_chat(
        self,
        policy: str,
        ids: TokenIds,
        messages: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:
        """Return the ids to append after a turn: ``new`` and the start of the next turn, [T].

        Return ``InexactContinuation`` if the chat template cannot append them exactly.

        Args:
            ids: the conversation so far, with turns as sampled, [T].
            messages: the same conversation as messages.
        """

    def reasoning_length(self, policy: str, text: str, prefix: str = "") -> int:
        """Return the number of leading reasoning characters in a turn's text.

        Args:
            prefix: the client's beginning of the turn.
        """

    def text_stream(
        self, policy: str, stops: Sequence[str | StopString], drops: bool, tools: bool, prefix: str = ""
    ) -> TextStream:
        """Return a detokenizer for a turn during sampling.

        Args:
            stops: stop strings.
            drops: whether the message excludes reasoning.
            tools: whether the turn may call tools.
            prefix: the client's beginning of the turn.
        """

    def encode_prefix(self, policy: str, text: str) -> TokenIds:
        """Return the token ids of a client's beginning of the turn, to append to the prompt, [T].

        Raises:
            UserError: no turn of the policy can begin with this text.
        """

    def turn_messages(self, policy: str, action: Action) -> Sequence[ChatMessage]:
        """Return an action as chat messages: its text, tool calls and tool outputs."""

    def count_tokens(self, policy: str, text: str) -> int:
        """Return the number of tokens in a text."""

    def context_length(self, policy: str) -> int:
        """Return the context length for prompt and action together, in tokens."""

    def clip(self, policy: str, text: str, tokens: int) -> str:
        """Truncate a text after ``tokens`` tokens and append a note about the omitted length."""

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], prefix: TokenIds = NO_TOKENS
    ) -> Sequence[ToolCall]:
        """Return the tool calls in a sampled turn, without calls in reasoning.

        An invalid call becomes an error that gives the reason.

        Args:
            prefix: a teammate's prefix of the turn; calls in the prefix are ignored.
        """

    def call_end(self, policy: str) -> str | StopString:
        """Return the marker after a tool call, or "" without a distinct marker."""

    def tool_call_messages(
        self, policy: str, text: str, calls: Sequence[ToolCall], prefix: TokenIds
    ) -> Sequence[ChatMessage]:
        """Return a turn with tool calls, and the tool outputs, as chat messages.

        Args:
            text: the sampled text, including calls.
            prefix: a teammate's prefix of the turn.
        """

    def tool_response(
        self,
        policy: str,
        turn: TokenIds,
        messages: Sequence[ChatMessage],
        calls: Sequence[ToolCall],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:
        """Return the ids to append after a ``turn`` with ``calls``: the tool outputs and the next turn's start, [T].

        Return ``InexactContinuation`` if the chat template cannot append them exactly.

        Args:
            messages: the conversation, up to the turn and its tool outputs.

        Raises:
            UserError: the model's chat template cannot render the messages.
        """

    def grammar(self, policy: str, chat: Chat) -> Grammar | None:
        """Return the grammar for the response to a client's chat, or None for free text.

        Raises:
            UserError: no grammar can express the constraint.
        """

    def token_texts(self, policy: str, tokens: TokenIds, begin: int = 0) -> tuple[str, ...]:
        """Return each token's text; control tokens give their names.

        Args:
            begin: number of leading tokens that each begin a text. The remaining tokens continue a text.
        """

    def decode_tokens(self, policy: str, tokens: TokenIds, inside: bool = False) -> str:
        """Return the text of sampled tokens, without the end-of-turn token.

        Args:
            inside: whether the tokens continue other tokens. A space before the first token is then part of the text.
        """

    def encode_text(self, policy: str, text: str) -> TokenIds:
        """Return the ids for a text in the middle of a turn, [T]; text that resembles a control token stays text."""

    def shared_tokens(self, policy: str, source_policy: str, tokens: TokenIds, text: str) -> TokenIds | None:
        """Return the ids for a text sampled by policy ``source_policy``, if ``policy`` has the same ids for this text,
        [T].

        Return None otherwise.
        """

    def tokenize_option(self, policy: str, text: str) -> TokenIds:
        """Return the ids for a whole turn with this text, including the end-of-turn token, [T]."""

    def response_prefix(self, policy: str, action: Action) -> int:
        """Return the number of leading tokens in ``action`` reusable at the start of a turn by ``policy``.

        These are all tokens except the end of turn.

        Raises:
            UserError: the two policies have different tokenizers, or ``policy`` is remote.
        """


def tool_call_messages(text: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Return a turn with tool calls, and the tool outputs, as chat messages.

    >>> tool_call_messages("", [ToolCall("add", '{"a": 1}', output="1")])[1]
    {'role': 'tool', 'name': 'add', 'tool_call_id': 'call00000', 'content': '1'}
    """
    tool_calls, answers = [], []
    for index, call in enumerate(calls):
        call_id, name = f"call{index:05d}", call.name or "unknown"
        arguments = parse_arguments(call.arguments)
        if not arguments and not isinstance(parse_json_text(call.arguments or "{}"), dict):
            arguments = {"unreadable": call.arguments}  # the history shows what was written
        function = {"name": name, "arguments": arguments}
        tool_calls.append({"type": "function", "id": call_id, "function": function})
        answers.append({"role": "tool", "name": name, "tool_call_id": call_id, "content": call.output})
    return [{"role": "assistant", "content": text, "tool_calls": tool_calls}, *answers]


def parse_arguments(arguments: str) -> dict[str, object]:
    """Return a call's arguments in the format of chat templates, or {} if they are not a JSON object."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def build_messages(profile: AgentProfile, observation: str, seen: Sequence[Message]) -> list[dict[str, str]]:
    """Return the chat for one rollout observation: a system message (the profile) and a user message (the rest).

    >>> profile = AgentProfile("actor", "Answer.", guidance="Be brief.")
    >>> build_messages(profile, "2 + 3 =", [Message("reasoner", "It is 5.")])[1]
    {'role': 'user', 'content': '2 + 3 =\\n\\nMessage from reasoner:\\nIt is 5.\\n\\nBe brief.'}
    """
    parts = [observation, *map(format_message, seen), profile.guidance]
    user = {"role": "user", "content": "\n\n".join(part for part in parts if part)}
    return [{"role": "system", "content": profile.instructions}, user] if profile.instructions else [user]
