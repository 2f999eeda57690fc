"""The rollout observation as text: [profile + observation + what it depends on (+ guidance)]."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from marft.common.marks import Grammar
from marft.common.thoughts import Said
from marft.common.types import Action, Profile, Prompt, TokenIds, Tool, ToolCall

if TYPE_CHECKING:
    from marft.agents.chat import Chat
    from marft.agents.live import LiveText

NOTHING = np.empty(0, np.int32)  # tokens
ChatMessage = Mapping[str, object]  # role and content, as chat templates and chat endpoints take them


@dataclass(frozen=True, slots=True)
class Message:
    """What an agent sees of another agent's action."""

    role: str
    text: str


class Channel(Protocol):
    """What lies between an action and those that see it."""

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """From what an agent is given of others, oldest first, to what it reads of each; None: it does not see it."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """What gives way when a rollout observation does not fit: ``messages`` (the oldest first, then the
    observation), ``observation`` (then the messages), or ``nothing``; ``keep`` is the end of a text that stays."""

    what: Literal["messages", "observation", "nothing"] = "messages"
    keep: Literal["start", "end"] = "end"


class PromptTooLongError(ValueError):
    """A rollout observation does not fit the model's context and may not be cut."""


@dataclass(frozen=True, slots=True)
class NotExact:
    """Why nothing can be appended to a conversation that would be what its chat template makes of it.

    Args:
        everywhere: nothing that the template renders can be continued, whatever was said.
    """

    reason: str
    everywhere: bool = False


class Renderer(Protocol):
    """From what an agent sees to the token ids of its policy's model."""

    def render(
        self,
        policy: str,
        profile: Profile,
        observation: str,
        seen: Sequence[Message],
        *,
        reserve: int,
        cut: Cut,
    ) -> Prompt:
        """Render a prompt that leaves ``reserve`` tokens of the context for the action.

        Raises:
            PromptTooLongError: it does not fit, even with all cut that may be cut.
        """

    def start(self, policy: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> TokenIds:
        """The ids of a conversation, up to where the agent's next turn begins.

        Raises:
            ValueError: the model's chat template cannot show it.
        """

    def go_on(
        self,
        policy: str,
        ids: TokenIds,
        messages: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> TokenIds | NotExact:
        """What is appended to a conversation that ends with a turn: ``new``, and the start of the next turn.

        Args:
            ids: the conversation so far, with turns as they were sampled.
            messages: the same in messages.
        """

    def thought(self, policy: str, text: str, begun: str = "") -> int:
        """How many of the first characters of a turn's text are a thought.

        Args:
            begun: the text that a client began the turn with.
        """

    def live(
        self, policy: str, stops: Sequence[str | Said], drops: bool, tools: bool, begun: str = ""
    ) -> LiveText:  # fmt: skip
        """What spells a turn while it is sampled.

        Args:
            stops: texts that end it.
            drops: whether its thoughts are no part of what it says.
            tools: whether it may call any.
            begun: the text that a client began the turn with.
        """

    def opening(self, policy: str, text: str) -> TokenIds:
        """Return the ids of a text that a client begins a turn with, after the prompt.

        Raises:
            ValueError: no turn of the policy can begin with it.
        """

    def turn(self, policy: str, action: Action) -> Sequence[ChatMessage]:
        """An action as messages of a chat: what it said, called and was answered."""

    def count(self, policy: str, text: str) -> int:
        """Tokens of a text."""

    def context(self, policy: str) -> int:
        """Tokens that prompt and action may have together."""

    def clip(self, policy: str, text: str, tokens: int) -> str:
        """The beginning of a text, where it has more than ``tokens`` tokens, and a note on how much is left out."""

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], begun: TokenIds = NOTHING
    ) -> Sequence[ToolCall]:
        """The tools that a sampled turn calls, but for those in a thought. A call that cannot be read comes back as an
        error that says why.

        Args:
            begun: what a teammate wrote at its beginning, whose calls are not looked for.
        """

    def call_end(self, policy: str) -> str | Said:
        """What comes after a call of a tool; "" where that is no mark of its own."""

    def calling_turn(self, policy: str, text: str, calls: Sequence[ToolCall], begun: TokenIds) -> Sequence[ChatMessage]:
        """A turn that called tools, and what they answered, as messages of a chat.

        Args:
            text: as it was sampled, calls included.
            begun: what a teammate wrote at its beginning.
        """

    def tool_response(
        self,
        policy: str,
        turn: TokenIds,
        messages: Sequence[ChatMessage],
        calls: Sequence[ToolCall],
        tools: Sequence[Tool],
    ) -> TokenIds | NotExact:
        """What is appended to a ``turn`` that made ``calls``: their answers, and the start of the next turn.

        Args:
            messages: the conversation, which ends with the turn and its answers.

        Raises:
            ValueError: the model's chat template cannot show them.
        """

    def grammar(self, policy: str, chat: Chat) -> Grammar | None:
        """Return the grammar that the answer to a client's chat must follow; None if any text is allowed.

        Raises:
            ValueError: no answer can be held to that.
        """

    def pieces(self, policy: str, tokens: TokenIds, begin: int = 0) -> tuple[str, ...]:
        """The text of each token, control tokens by their names.

        Args:
            begin: how many of the first ones begin a text each; the others go on from one.
        """

    def spelled(self, policy: str, tokens: TokenIds, inside: bool = False) -> str:
        """The text of sampled tokens, the end of the turn left out.

        Args:
            inside: whether they go on from others: a space before the first is part of the text then.
        """

    def ids(self, policy: str, text: str) -> TokenIds:
        """The ids of a text in the middle of a turn; what looks like a control token is text."""

    def quotable(self, policy: str, other: str, tokens: TokenIds, text: str) -> TokenIds | None:
        """The ids of a text that policy ``other`` has sampled, where they are those of ``policy`` too and spell no more
        than the text; None where they are not."""

    def option(self, policy: str, text: str) -> TokenIds:
        """The ids of a whole turn that says ``text``, end of turn included."""

    def response_prefix(self, policy: str, other: Action) -> int:
        """How many of the first tokens of ``other`` a turn of ``policy`` can begin with: all but the end of the turn.

        Raises:
            ValueError: the two policies have different tokenizers, or ``policy`` is remote.
        """


def exchange(text: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """A turn that calls tools, and what they answered, as messages of a chat.

    >>> exchange("", [ToolCall("add", '{"a": 1}', output="1")])[1]
    {'role': 'tool', 'name': 'add', 'tool_call_id': 'call00000', 'content': '1'}
    """
    named = [(f"call{index:05d}", call.name or "unknown", call) for index, call in enumerate(calls)]
    functions = [(name_id, {"name": name, "arguments": arguments_of(call.arguments)}) for name_id, name, call in named]
    turn = {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"type": "function", "id": name_id, "function": function} for name_id, function in functions],
    }
    answers = [
        {"role": "tool", "name": name, "tool_call_id": name_id, "content": call.output} for name_id, name, call in named
    ]
    return [turn, *answers]


def arguments_of(arguments: str) -> dict[str, object]:
    """The arguments of a call as chat templates take them; none where they are no JSON object."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def compose(profile: Profile, observation: str, seen: Sequence[Message]) -> list[dict[str, str]]:
    """The chat of one rollout observation: a system message (the profile) and a user message (the rest).

    >>> compose(Profile("actor", "Answer.", guidance="Be brief."), "2 + 3 =", [Message("reasoner", "It is 5.")])[1]
    {'role': 'user', 'content': '2 + 3 =\\n\\nMessage from reasoner:\\nIt is 5.\\n\\nBe brief.'}
    """
    parts = [observation, *(f"Message from {message.role}:\n{message.text}" for message in seen), profile.guidance]
    user = {"role": "user", "content": "\n\n".join(part for part in parts if part)}
    return [{"role": "system", "content": profile.instructions}, user] if profile.instructions else [user]
