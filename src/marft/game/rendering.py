"""The rollout observation as text: [profile + observation + what it depends on (+ guidance)]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from marft.types import Action, Profile, Prompt, TokenIds


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

    def count(self, policy: str, text: str) -> int:
        """Tokens of a text."""

    def option(self, policy: str, text: str) -> TokenIds:
        """The ids of a whole turn that says ``text``, end of turn included."""

    def opening(self, policy: str, other: Action) -> int:
        """How many of the first tokens of ``other`` a turn of ``policy`` can begin with: all but the end of the turn.

        Raises:
            ValueError: the two policies have different tokenizers, or ``policy`` is remote.
        """


def compose(profile: Profile, observation: str, seen: Sequence[Message]) -> list[dict[str, str]]:
    """The chat of one rollout observation: a system message (the profile) and a user message (the rest).

    >>> compose(Profile("actor", "Answer.", guidance="Be brief."), "2 + 3 =", [Message("reasoner", "It is 5.")])[1]
    {'role': 'user', 'content': '2 + 3 =\\n\\nMessage from reasoner:\\nIt is 5.\\n\\nBe brief.'}
    """
    parts = [observation, *(f"Message from {message.role}:\n{message.text}" for message in seen), profile.guidance]
    user = {"role": "user", "content": "\n\n".join(part for part in parts if part)}
    return [{"role": "system", "content": profile.instructions}, user] if profile.instructions else [user]
