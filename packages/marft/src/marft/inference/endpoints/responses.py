"""Responses from endpoints. The content is untrusted: an incomplete response is rejected."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marft.common.errors import UserError
from marft.common.types import FinishReason, ToolCall
from marft.common.usage import Usage
from marft.config.endpoint import EndpointSettings
from marft.config.load import first_problem
from marft.config.secrets import mask_values

TokenCount = Annotated[int, Field(ge=0, lt=2**31)]
TRUNCATED_REASONS = (
    "length",
    "max_tokens",
    "max_output_tokens",
    "model_length",
    "token_limit",
)  # finish reasons that servers use for a truncated answer


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """Response of a remote model. ``calls`` contains its tool calls, or None without tool calls."""

    text: str
    finish: FinishReason
    calls: tuple[ToolCall, ...] | None = None
    usage: Usage = Usage()


class _ResponseModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Function(_ResponseModel):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: str | dict[str, object] | None = None  # some servers send decoded JSON, or leave out empty arguments


class _Call(_ResponseModel):
    function: _Function


class _Message(_ResponseModel):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(_ResponseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(_ResponseModel):
    prompt_tokens: TokenCount | None = None  # some servers report null instead of a count
    completion_tokens: TokenCount | None = None


class ResponseBody(_ResponseModel):
    """Chat completion body, limited to the parts used by MARFT."""

    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


def parse_body(content: bytes) -> ResponseBody:
    """Parse the body of a chat completion.

    Raises:
        UserError: the body is not a chat completion; the message gives the reason.
    """
    try:
        return ResponseBody.model_validate_json(content)
    except ValidationError as error:
        raise UserError(first_problem(error)) from error


def compute_usage(body: ResponseBody, settings: EndpointSettings, retries: int) -> Usage:
    """Return the token usage and cost for a response, usable or not.

    Args:
        settings: endpoint settings with the prices.
        retries: number of retries for this response.
    """
    reported = body.usage or _Usage()
    prompt_tokens, completion_tokens = reported.prompt_tokens or 0, reported.completion_tokens or 0
    prices = settings.price_per_million_prompt_tokens, settings.price_per_million_completion_tokens
    return Usage(
        prompt_tokens, completion_tokens, (prices[0] * prompt_tokens + prices[1] * completion_tokens) / 1e6, retries
    )


def parse_response(body: ResponseBody, usage: Usage, limit: object = None) -> ModelResponse:
    """Extract the response from a body.

    A response is truncated if the server reports it. Without a finish reason, it is truncated if it uses all permitted
    tokens.

    Args:
        limit: maximum number of tokens for the response.

    Raises:
        UserError: the body contains no usable response; the message gives the reason.
    """
    choice = body.choices[0]
    if choice.finish_reason == "content_filter":
        raise UserError("choices.0.finish_reason: content_filter, the server has held it back")
    calls = tuple(
        ToolCall(call.function.name, _arguments_json(call.function)) for call in choice.message.tool_calls or ()
    )
    if choice.message.content is None and not calls:
        raise UserError("choices.0.message: it has neither content nor tool calls")
    reason = (choice.finish_reason or "").lower()
    full = not reason and isinstance(limit, int) and 0 < limit <= usage.completion_tokens
    finish: FinishReason = "length" if reason in TRUNCATED_REASONS or full else "stop"
    return ModelResponse(choice.message.content or "", finish, calls or None, usage)


def mask_secrets(response: ModelResponse, secrets: Collection[str]) -> ModelResponse:
    """Mask secrets echoed by a server, before the response gets stored or shown."""
    if not secrets:
        return response
    calls = response.calls and tuple(
        replace(call, name=mask_values(secrets, call.name), arguments=mask_values(secrets, call.arguments))
        for call in response.calls
    )
    return replace(response, text=mask_values(secrets, response.text), calls=calls)


def to_metrics(usage: Usage, prefix: str) -> dict[str, float]:
    """Return the usage by metric name."""
    return {
        f"{prefix}prompt_tokens": float(usage.prompt_tokens),
        f"{prefix}completion_tokens": float(usage.completion_tokens),
        f"{prefix}cost": usage.cost,
        f"{prefix}retries": float(usage.retries),
    }


def _arguments_json(function: _Function) -> str:
    return function.arguments if isinstance(function.arguments, str) else json.dumps(function.arguments or {})
