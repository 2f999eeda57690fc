"""What all protocols share: a request once it is read, and how its answer is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from marft.agents.chat import Chat, Reply
from marft.agents.live import Begun
from marft_serve.gateway.protocol.reading import Said
from marft_serve.gateway.refusals import RequestError

NOTHING: Mapping[str, tuple[Said, ...]] = MappingProxyType({})
Event = tuple[str, Mapping[str, Any] | str]  # of a stream: its name ("": none), and what it says


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read.

    Args:
        count: actions that are wanted.
        ignored: fields that nobody reads.
        detail: what else the response takes.
        turns: what is to be kept of it, for requests that name its response.
        model: as the client calls it.
    """

    chat: Chat
    count: int = 1
    stream: bool = False
    ignored: tuple[str, ...] = ()
    detail: Mapping[str, Any] | None = None
    turns: tuple[Said, ...] | None = None
    model: str = ""


class Stream(ABC):
    """An answer as events, while its actions come about.

    Args:
        begun: the first of its actions.
        told: of the agent, its policy, and what was asked for in vain.
    """

    def __init__(self, asked: Asked, begun: Begun, told: Mapping[str, Any]) -> None:
        self.asked, self.begun, self.told = asked, begun, told

    @abstractmethod
    def begin(self) -> Iterator[Event]:
        """The first events, before anything is said."""

    @abstractmethod
    def say(self, index: int, thought: str, text: str) -> Iterator[Event]:
        """An action's thought goes on, or what it says does.

        Args:
            index: of the action.
        """

    @abstractmethod
    def end(self, replies: Sequence[Reply], told: Mapping[str, Any]) -> Iterator[Event]:
        """What comes after all that is said: calls, why it ended, usage.

        Args:
            told: as it is known now.
        """


class Protocol(ABC):
    """One way to ask and to be answered."""

    @abstractmethod
    def read(self, body: bytes, earlier: Mapping[str, tuple[Said, ...]] = NOTHING) -> Asked:
        """The request.

        Args:
            earlier: the conversations that end with responses of this agent, by what those are called.

        Raises:
            RequestError: it cannot be answered.
        """

    @abstractmethod
    def response(self, asked: Asked, replies: Sequence[Reply], told: Mapping[str, Any]) -> Mapping[str, Any]:
        """The response's body.

        Args:
            told: of the agent, its policy, and what was asked for in vain.
        """

    @abstractmethod
    def stream(self, asked: Asked, begun: Begun, told: Mapping[str, Any]) -> Stream:
        """The response as a stream of events."""

    def kept(self, asked: Asked, replies: Sequence[Reply]) -> Mapping[str, tuple[Said, ...]]:  # noqa: ARG002
        """What later requests may go on from: conversations by the names of their responses."""
        return NOTHING

    @abstractmethod
    def error(self, error: RequestError) -> Mapping[str, Any]:
        """The body of a refusal."""


def call_id(reply: Reply, number: int) -> str:
    """What a client calls a call: its own in the whole episode."""
    return f"call_{reply.action.index:05d}{number:03d}"


def said_by(reply: Reply) -> str:
    """What an answer says beside its calls, after what the client began it with."""
    return str(reply.message["content"] or "")[len(reply.begun) :]


def in_pieces(text: str, size: int = 64) -> Iterator[str]:
    """A text in pieces, as streams have it."""
    return (text[at : at + size] for at in range(0, len(text), size))


def log_probs_of(reply: Reply) -> list[dict[str, Any]]:
    """The tokens of an answer with their log-probs, and the likeliest ones in the place of each, as OpenAI has it; none
    where their texts were not asked for."""
    if not reply.pieces:
        return []
    action = reply.action
    log_probs = np.zeros(len(action.tokens))  # of a token that was forced
    log_probs[action.sampled] = action.log_probs
    others = reply.alternatives or ((),) * len(log_probs)
    return [
        {**_piece(text, value), "top_logprobs": [_piece(*other) for other in alternatives]}
        for text, value, alternatives in zip(reply.pieces, log_probs.tolist(), others, strict=True)
    ]


def _piece(text: str, log_prob: float) -> dict[str, Any]:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


def usage_of(replies: Sequence[Reply]) -> tuple[int, int]:
    """Tokens that a request read and sampled: its prompt counts once."""
    return max(len(reply.action.prompt) for reply in replies), sum(len(reply.action.tokens) for reply in replies)
