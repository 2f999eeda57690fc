"""A chat that somebody else's program brings: its messages and tools, and what it asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marft.agents.live import Live
from marft.agents.rendering import ChatMessage
from marft.common.marks import Grammar
from marft.common.thoughts import Said
from marft.common.types import Action, Sampling, Tool, ToolCall

Refusal = Literal["invalid", "too_long", "unsupported", "failed"]


class ChatRefusedError(ValueError):
    """A chat that no action answers; the message is for the client. Nothing was sampled, and nothing is recorded.

    Args:
        why: ``invalid``, ``too_long`` (beyond the model's context), ``unsupported``, or ``failed`` (the engine's fault,
            and this chat's alone).
    """

    def __init__(self, why: Refusal, message: str) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must look like: calls of some tool, or of one, or JSON of a schema. Where tools are offered and
    may be called, JSON is what an answer must be that calls none."""

    kind: Literal["call", "json"]
    tool: str = ""  # of a call: which; "" is any
    schema: Mapping[str, Any] | None = None  # of JSON; None is that of any object
    parallel: bool = True  # whether a turn may make several calls


@dataclass(frozen=True, slots=True)
class Chat:
    """What an agent is asked through a client.

    Args:
        messages: as chat templates take them; calls and their answers are named by their places (:func:`exchange`).
        tools: of the client, which makes the calls itself.
        calls: whether calls are looked for in what is said.
        max_tokens: at most; the recipe's limit holds too.
        sees: ids of the actions that it depends on, where the client says so.
        wishes: what was asked for and is only recorded, such as a temperature: the recipe's holds.
        constraint: of the answer.
        pieces: whether the text of each token is asked for.
        alternatives: how many of the likeliest tokens are asked for beside each.
        parallel: whether a turn may make several calls, where it need not make any.
        begun: what the client begins the answer with: the agent goes on from there, and it is not trained.
        live: hears the action while it comes about.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    calls: bool = True
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sees: tuple[str, ...] | None = None
    wishes: Mapping[str, float | int] = field(default_factory=dict)
    constraint: Constraint | None = None
    pieces: bool = False
    alternatives: int = 0
    parallel: bool = True
    begun: str = ""
    live: Live | None = field(default=None, compare=False)

    def sampling(self, own: Sampling, room: int, grammar: Grammar | None = None, ends: str | Said = "") -> Sampling:
        """How the answer is sampled: as the recipe says, but for less tokens, more texts that end it, and what it must
        be.

        Args:
            own: the agent's.
            room: tokens that the context has left.
            grammar: of the constraint.
            ends: what ends a call, where that is to end the turn.
        """
        most = min(own.max_new_tokens, room, self.max_tokens or own.max_new_tokens)
        last: tuple[str | Said, ...] = (ends,) if ends else ()
        stop = tuple(dict.fromkeys((*own.stop, *self.stop, *last)))
        held_to = grammar or own.grammar
        return Sampling(own.temperature, most, own.top_p, own.top_k, stop, held_to, self.alternatives, self.live)

    @property
    def calls_once(self) -> bool:
        """Whether a turn that calls a tool is to make one call, and nothing else holds it to that."""
        return bool(self.tools) and self.calls and not self.parallel and self.constraint is None

    def recorded(self) -> str:
        """The wishes, as JSON; "" where there are none."""
        return json.dumps(dict(self.wishes), sort_keys=True) if self.wishes else ""


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """An action as a client is told it.

    Args:
        message: the turn, as it must come back to be gone on from by its ids.
        calls: of tools in it, for the client to make.
        thought: what of the text the message leaves out.
        begun: what the client began the message with.
        stopped: the stop string that ended it; "" where none did.
        pieces: the text of each token, where it was asked for.
        alternatives: the texts of the likeliest tokens in the place of each, and their log-probs, where they were.
    """

    action: Action
    message: ChatMessage
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    begun: str = ""
    stopped: str = ""
    pieces: tuple[str, ...] = ()
    alternatives: tuple[tuple[tuple[str, float], ...], ...] = ()
