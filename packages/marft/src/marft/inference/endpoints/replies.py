"""What an endpoint answers. It is somebody else's text: anything that is not a whole answer is refused."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marft.common.types import Finish, ToolCall
from marft.common.usage import Usage
from marft.config.endpoint import EndpointSettings
from marft.config.keys import masked

Tokens = Annotated[int, Field(ge=0, lt=2**31)]
CUT = (
    "length",
    "max_tokens",
    "max_output_tokens",
    "model_length",
    "token_limit",
)  # of what servers say of a cut answer


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One answer of a remote model. ``calls`` are the tools it calls; None: it was offered none, or calls none."""

    text: str
    finish: Finish
    calls: tuple[ToolCall, ...] | None = None
    usage: Usage = Usage()


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Function(_Table):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: str | dict[str, object] | None = None  # some servers have read it already, or leave out what is empty


class _Call(_Table):
    function: _Function


class _Message(_Table):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(_Table):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Table):
    prompt_tokens: Tokens | None = None  # some servers do not count, and say so
    completion_tokens: Tokens | None = None


class Body(_Table):
    """The body of a chat completion, as far as it is read here."""

    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


def read_body(content: bytes) -> Body:
    """Read the body of a chat completion.

    Raises:
        ValueError: it is none; the message says why.
    """
    try:
        return Body.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where + ': ' if where else ''}{first['msg']}") from error


def usage_of(body: Body, settings: EndpointSettings, retries: int) -> Usage:
    """What an answer has taken, whether there is anything in it or not.

    Args:
        settings: for the prices.
        retries: how often it was asked for again.
    """
    used = body.usage or _Usage()
    read, written = used.prompt_tokens or 0, used.completion_tokens or 0
    prices = settings.price_per_million_prompt_tokens, settings.price_per_million_completion_tokens
    return Usage(read, written, (prices[0] * read + prices[1] * written) / 1e6, retries)


def reply_of(body: Body, usage: Usage, limit: object = None) -> ModelReply:
    """The answer in a body. It was cut where the server says so, or says nothing and all tokens were used.

    Args:
        limit: tokens that the answer could have.

    Raises:
        ValueError: there is none in it; the message says why.
    """
    choice = body.choices[0]
    if choice.finish_reason == "content_filter":
        raise ValueError("choices.0.finish_reason: content_filter, the server has held it back")
    calls = tuple(ToolCall(call.function.name, _as_json(call.function)) for call in choice.message.tool_calls or ())
    if choice.message.content is None and not calls:
        raise ValueError("choices.0.message: it has neither content nor tool calls")
    reason = (choice.finish_reason or "").lower()
    full = not reason and isinstance(limit, int) and 0 < limit <= usage.completion_tokens
    finish: Finish = "length" if reason in CUT or full else "stop"
    return ModelReply(choice.message.content or "", finish, calls or None, usage)


def masked_reply(reply: ModelReply, secrets: Collection[str]) -> ModelReply:
    """The answer as it may be stored and read by others: without what was sent in confidence, should it echo that."""
    if not secrets:
        return reply
    calls = reply.calls and tuple(
        replace(call, name=masked(secrets, call.name), arguments=masked(secrets, call.arguments))
        for call in reply.calls
    )
    return replace(reply, text=masked(secrets, reply.text), calls=calls)


def as_metrics(used: Usage, prefix: str) -> dict[str, float]:
    """What answers took, by the name of a metric."""
    return {
        f"{prefix}prompt_tokens": float(used.prompt_tokens),
        f"{prefix}completion_tokens": float(used.completion_tokens),
        f"{prefix}cost": used.cost,
        f"{prefix}retries": float(used.retries),
    }


def _as_json(function: _Function) -> str:
    return function.arguments if isinstance(function.arguments, str) else json.dumps(function.arguments or {})
