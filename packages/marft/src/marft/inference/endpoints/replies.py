"""Responses from endpoints. The content is untrusted: an incomplete response is rejected."""

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
)  # finish reasons that servers use for a truncated answer


@dataclass(frozen=True, slots=True)
class ModelReply:
    """Response of a remote model. ``calls`` contains its tool calls, or None without tool calls."""

    text: str
    finish: Finish
    calls: tuple[ToolCall, ...] | None = None
    usage: Usage = Usage()


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Function(_Table):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: str | dict[str, object] | None = None  # some servers send decoded JSON, or leave out empty arguments


class _Call(_Table):
    function: _Function


class _Message(_Table):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(_Table):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Table):
    prompt_tokens: Tokens | None = None  # some servers report null instead of a count
    completion_tokens: Tokens | None = None


class Body(_Table):
    """Chat completion body, limited to the parts used by MARFT."""

    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


def read_body(content: bytes) -> Body:
    """Parse the body of a chat completion.

    Raises:
        ValueError: the body is not a chat completion; the message gives the reason.
    """
    try:
        return Body.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where + ': ' if where else ''}{first['msg']}") from error


def usage_of(body: Body, settings: EndpointSettings, retries: int) -> Usage:
    """Return the token usage and cost for a response, usable or not.

    Args:
        settings: endpoint settings with the prices.
        retries: number of retries for this response.
    """
    used = body.usage or _Usage()
    read, written = used.prompt_tokens or 0, used.completion_tokens or 0
    prices = settings.price_per_million_prompt_tokens, settings.price_per_million_completion_tokens
    return Usage(read, written, (prices[0] * read + prices[1] * written) / 1e6, retries)


def reply_of(body: Body, usage: Usage, limit: object = None) -> ModelReply:
    """Extract the response from a body.

    A response is truncated if the server reports it. Without a finish reason, it is truncated if it uses all permitted
    tokens.

    Args:
        limit: maximum number of tokens for the response.

    Raises:
        ValueError: the body contains no usable response; the message gives the reason.
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
    """Mask secrets echoed by a server, before the response gets stored or shown."""
    if not secrets:
        return reply
    calls = reply.calls and tuple(
        replace(call, name=masked(secrets, call.name), arguments=masked(secrets, call.arguments))
        for call in reply.calls
    )
    return replace(reply, text=masked(secrets, reply.text), calls=calls)


def as_metrics(used: Usage, prefix: str) -> dict[str, float]:
    """Return the usage by metric name."""
    return {
        f"{prefix}prompt_tokens": float(used.prompt_tokens),
        f"{prefix}completion_tokens": float(used.completion_tokens),
        f"{prefix}cost": used.cost,
        f"{prefix}retries": float(used.retries),
    }


def _as_json(function: _Function) -> str:
    return function.arguments if isinstance(function.arguments, str) else json.dumps(function.arguments or {})
