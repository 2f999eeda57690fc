"""What an endpoint answers. It is somebody else's text: anything that is not a whole answer is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marft.config.endpoint import EndpointSettings
from marft.types import Finish, ToolCall, Usage

Tokens = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a remote model. ``calls`` are the tools it calls; None: it was offered none, or calls none."""

    text: str
    finish: Finish
    calls: tuple[ToolCall, ...] | None = None
    usage: Usage = Usage()


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Function(_Table):
    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] | None = None  # some servers have read it already, or leave out what is empty


class _Call(_Table):
    function: _Function


class _Message(_Table):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(_Table):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Table):
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0


class _Body(_Table):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


def read_answer(body: bytes, settings: EndpointSettings, retries: int = 0) -> Answer:
    """The answer in the body of a chat completion.

    Args:
        settings: for the prices.
        retries: how often it was asked for again.

    Raises:
        ValueError: there is none in it; the message says why.
    """
    try:
        read = _Body.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where + ': ' if where else ''}{first['msg']}") from error
    choice, used = read.choices[0], read.usage or _Usage()
    calls = tuple(ToolCall(call.function.name, _as_json(call.function)) for call in choice.message.tool_calls or ())
    if choice.message.content is None and not calls:
        raise ValueError("choices.0.message: it has neither content nor tool calls")
    cost = (
        settings.price_per_million_prompt_tokens * used.prompt_tokens
        + settings.price_per_million_completion_tokens * used.completion_tokens
    ) / 1e6
    return Answer(
        text=choice.message.content or "",
        finish="length" if choice.finish_reason == "length" else "stop",
        calls=calls or None,
        usage=Usage(used.prompt_tokens, used.completion_tokens, cost, retries),
    )


def _as_json(function: _Function) -> str:
    return function.arguments if isinstance(function.arguments, str) else json.dumps(function.arguments or {})
