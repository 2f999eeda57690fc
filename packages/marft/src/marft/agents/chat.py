"""Chat from a client's program: its messages, its tools and its sampling requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from marft.agents.prompt_messages import ChatMessage
from marft.agents.streaming import TokenStream
from marft.common.errors import UserError
from marft.common.reasoning import StopString
from marft.common.token_data import Grammar
from marft.common.types import Action, SamplingParams, Tool, ToolCall

Refusal = Literal["invalid", "too_long", "unsupported", "failed"]


class ChatRefusedError(UserError):
    """Chat rejected before sampling; nothing is recorded.

    Args:
        reason: ``invalid``, ``too_long`` (beyond the model's context), ``unsupported``, or ``failed`` (an engine error
            that affects this chat only).
        message: explanation for the client.
    """

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Constraint:
    """Required form for a response: a tool call, or JSON that matches a schema.

    If tools are offered and may be called, the JSON constraint applies to responses without a call.
    """

    kind: Literal["call", "json"]
    tool: str = ""  # the required tool of a call constraint; "" allows any tool
    schema: Mapping[str, Any] | None = None  # the JSON schema; None allows any object
    allow_parallel_calls: bool = True  # whether one turn may make several calls


@dataclass(frozen=True, slots=True)
class Chat:
    """Request from a client to an agent.

    Args:
        messages: in the format of chat templates. Tool calls and their results are matched by position
            (:func:`~marft.agents.prompt_messages.tool_call_messages`).
        tools: the client's tools; the client executes the calls itself.
        parse_calls: whether to parse tool calls in the response.
        max_tokens: maximum tokens in the response; the recipe's limit applies as well.
        stop: additional stop strings.
        sees: ids of the actions that the response depends on, if the client names them.
        recorded_options: requested sampling parameters that are only recorded, such as a temperature. The recipe's
            values apply.
        constraint: required form of the response.
        return_token_texts: whether to return the text of each token.
        alternatives: number of most likely alternative tokens to return at each position.
        allow_parallel_calls: whether one turn may make several calls, if calls are optional.
        prefix: the client's beginning of the response. The agent continues it, and it is not trained.
        token_stream: stream that receives the action while it is generated.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    parse_calls: bool = True
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sees: tuple[str, ...] | None = None
    recorded_options: Mapping[str, float | int] = field(default_factory=dict)
    constraint: Constraint | None = None
    return_token_texts: bool = False
    alternatives: int = 0
    allow_parallel_calls: bool = True
    prefix: str = ""
    token_stream: TokenStream | None = field(default=None, compare=False)

    def resolve_sampling(
        self, base: SamplingParams, room: int, grammar: Grammar | None = None, ends: str | StopString = ""
    ) -> SamplingParams:
        """Return the sampling settings for the response.

        The recipe's settings apply, with a possibly lower token limit, additional stop strings and the constraint's
        grammar.

        Args:
            base: the agent's sampling settings.
            room: tokens left in the context.
            grammar: grammar for the constraint.
            ends: end marker of a tool call, if a call should end the turn.
        """
        max_tokens = min(base.max_new_tokens, room, self.max_tokens or base.max_new_tokens)
        last: tuple[str | StopString, ...] = (ends,) if ends else ()
        stop = tuple(dict.fromkeys((*base.stop, *self.stop, *last)))
        sampling = replace(base, max_new_tokens=max_tokens, stop=stop, grammar=grammar or base.grammar)
        return replace(sampling, alternatives=self.alternatives, on_token=self.token_stream)

    @property
    def stops_after_first_call(self) -> bool:
        """True if a turn should make at most one tool call without a constraint that enforces the limit."""
        return bool(self.tools) and self.parse_calls and not self.allow_parallel_calls and self.constraint is None

    def requested_sampling_json(self) -> str:
        """Return the sampling parameters that the client asked for, as JSON; "" if none."""
        return json.dumps(dict(self.recorded_options), sort_keys=True) if self.recorded_options else ""


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """Action in the form returned to a client.

    Args:
        message: the turn. The client must send it back unchanged for a continuation by token ids.
        calls: tool calls for the client to execute.
        thought: reasoning, which the message omits.
        prefix: the client's beginning of the message.
        stop_string: the stop string that ended the message, or "".
        pieces: the text of each token, if requested.
        alternatives: for each token, the most likely alternative texts and their log-probabilities, if requested.
    """

    action: Action
    message: ChatMessage
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    prefix: str = ""
    stop_string: str = ""
    pieces: tuple[str, ...] = ()
    alternatives: tuple[tuple[tuple[str, float], ...], ...] = ()
