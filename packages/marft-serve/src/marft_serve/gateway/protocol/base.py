"""Base classes for wire protocols: a parsed request, and response encoders."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NotRequired, TypedDict

import numpy as np

from marft.agents.chat import Chat, Reply
from marft.agents.streaming import ActionStart
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol.parsing import ClientMessage

NO_CONVERSATIONS: Mapping[str, tuple[ClientMessage, ...]] = MappingProxyType({})
Event = tuple[str, Mapping[str, object] | str]  # event of a stream: its name ("" for none) and its data


class Metadata(TypedDict):
    """Data of a response about its model and its actions; ``request`` replaces the first action's id in its id."""

    model: str
    marft: Mapping[str, object]
    request: NotRequired[str]


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """Parsed request.

    Args:
        chat: the chat to answer.
        count: number of actions.
        stream: True for a streamed response.
        ignored: names of ignored fields, for the response.
        detail: further data for the response, specific to the protocol.
        turns: messages to store for requests that name this response; None to store nothing.
        model: model name from the client.
    """

    chat: Chat
    count: int = 1
    stream: bool = False
    ignored: tuple[str, ...] = ()
    detail: Mapping[str, object] | None = None
    turns: tuple[ClientMessage, ...] | None = None
    model: str = ""


class Stream(ABC):
    """Encoder for a response's events while its actions run.

    Args:
        request: the request.
        first_action: the first action.
        metadata: the response's data about the agent, the policy, and the ignored and recorded-only fields.
    """

    def __init__(self, request: ParsedRequest, first_action: ActionStart, metadata: Metadata) -> None:
        self.request, self.first_action, self.metadata = request, first_action, metadata

    @abstractmethod
    def begin(self) -> Iterator[Event]:
        """Yield the initial events, before any text."""

    @abstractmethod
    def emit_delta(self, index: int, reasoning: str, text: str) -> Iterator[Event]:
        """Yield the events for more reasoning or more text of an action.

        Args:
            index: index of the action in the response.
            reasoning: additional reasoning.
            text: additional text.
        """

    @abstractmethod
    def end(self, replies: Sequence[Reply], metadata: Metadata) -> Iterator[Event]:
        """Yield the last events: tool calls, finish reason and usage.

        Args:
            replies: the complete replies.
            metadata: final data about the agent, the policy, and the ignored and recorded-only fields.
        """


class Protocol(ABC):
    """Wire protocol: request parser and response encoder.

    Attributes:
        stream_type: encoder for streamed responses.
        error_event: name of the event for an error in a stream; "" for none.
        has_own_errors: False if errors have OpenAI's format.
    """

    stream_type: ClassVar[type[Stream]]
    error_event: ClassVar[str] = "error"
    has_own_errors: ClassVar[bool] = False

    @abstractmethod
    def parse_request(
        self, body: bytes, earlier: Mapping[str, tuple[ClientMessage, ...]] = NO_CONVERSATIONS
    ) -> ParsedRequest:
        """Parse a request's body.

        Args:
            body: the body.
            earlier: conversations up to each stored response of this agent, by response id.

        Raises:
            RequestError: the request is invalid or unsupported.
        """

    @abstractmethod
    def build_response(
        self, request: ParsedRequest, replies: Sequence[Reply], metadata: Metadata
    ) -> Mapping[str, object]:
        """Return the response body.

        Args:
            request: the request.
            replies: the replies, one per action.
            metadata: data about the agent, the policy, and the ignored and recorded-only fields.
        """

    def conversations_to_store(
        self,
        request: ParsedRequest,  # noqa: ARG002
        replies: Sequence[Reply],  # noqa: ARG002
    ) -> Mapping[str, tuple[ClientMessage, ...]]:
        """Return conversations to store for later requests, by response id."""
        return NO_CONVERSATIONS

    def build_error(self, error: RequestError) -> Mapping[str, object]:
        """Return the body for an error response."""
        return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def format_event(event: Event) -> str:
    """Format a server-sent event."""
    name, payload = event
    data = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False, allow_nan=False)
    return (f"event: {name}\n" if name else "") + f"data: {data}\n\n"


def build_call_id(reply: Reply, number: int) -> str:
    """Return the id of a tool call, unique in the episode."""
    return f"call_{reply.action.index:05d}{number:03d}"


def get_reply_text(reply: Reply) -> str:
    """Return the text of a reply without its tool calls and without the prefix given by the client."""
    return str(reply.message["content"] or "")[len(reply.prefix) :]


def split_text(text: str, size: int = 64) -> Iterator[str]:
    """Split a text into pieces of up to ``size`` characters, for a stream."""
    return (text[at : at + size] for at in range(0, len(text), size))


def build_log_probs(reply: Reply) -> list[dict[str, object]]:
    """Return the tokens of a reply with log-probabilities and the most likely alternatives, in OpenAI's format.

    The list is empty if the request did not ask for log-probabilities. Values are in nats.
    """
    if not reply.pieces:
        return []
    action = reply.action
    log_probs = np.zeros(len(action.tokens))  # a forced token has log-probability 0
    log_probs[action.sampled_mask] = action.log_probs
    top_tokens = reply.alternatives or ((),) * len(log_probs)
    return [
        {
            **_build_token_entry(text, value),
            "top_logprobs": [_build_token_entry(*candidate) for candidate in alternatives],
        }
        for text, value, alternatives in zip(reply.pieces, log_probs.tolist(), top_tokens, strict=True)
    ]


def _build_token_entry(text: str, log_prob: float) -> dict[str, object]:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


def count_usage(replies: Sequence[Reply]) -> tuple[int, int]:
    """Return prompt tokens and sampled tokens for a request; the prompt counts only once."""
    return max(len(reply.action.prompt) for reply in replies), sum(len(reply.action.tokens) for reply in replies)
