"""Reading what clients send: tables held to their types, and chats in the words of chat templates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marft.game.chat import Constraint
from marft.game.rendering import ChatMessage, arguments_of
from marft.gateway.refusals import RequestError
from marft.texts import storable
from marft.types import Tool

MOST_ACTIONS = 64  # of one request
MOST_STOPS = 16
MOST_ALTERNATIVES = 20  # of a token
MOST_MESSAGES = 8192  # of a chat, and parts of a message
MOST_TOOLS = 512


class Table(BaseModel):
    """A table of a request; :mod:`marft.gateway.protocol.fields` says what becomes of fields that it does not name."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


Read = TypeVar("Read", bound=Table)
Count = Annotated[int, Field(ge=1, lt=2**31)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Annotated[list[Stop], Field(max_length=MOST_STOPS)] | Stop | None
Schema = dict[str, Any]


def read(kind: type[Read], body: bytes) -> Read:
    """A request's body.

    Raises:
        RequestError: it is none; the message says where and why.
    """
    try:
        table = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:200]
        message = storable(f"{where + ': ' if where else ''}{first['msg']}")
        raise RequestError(400, "invalid_value", message, where or None) from None
    try:
        json.loads(body, parse_constant=_finite, parse_float=_finite)
    except ValueError as error:
        raise RequestError(400, "invalid_value", str(error)) from None
    return table


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:32]} is no finite number, and no response could say it")
    return number


def unsupported(field: str, why: str) -> RequestError:
    return RequestError(400, "unsupported_parameter", f"{field}: {why}", field)


class Part(Table):
    type: str
    text: str | None = None


Parts = Annotated[list[Part], Field(max_length=MOST_MESSAGES)]
Content = str | Parts | None


def text_of(content: Content, texts: Sequence[str] = ("text",)) -> str:
    """The text of a message.

    Args:
        texts: types of parts that are text.

    Raises:
        RequestError: a part of it is none.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in texts or part.text is None:
            raise unsupported("content", f"a part is of type {storable(part.type)[:64]!r}, and agents read text alone")
    return "".join(part.text or "" for part in content)


def stops_of(stop: list[str] | str | None) -> tuple[str, ...]:
    """Texts that end an answer."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def forced_call(tools: Sequence[Tool], name: str, parallel: bool) -> Constraint:
    """What an answer must look like that calls a tool.

    Args:
        name: of the tool; "" is any.

    Raises:
        RequestError: it is not offered.
    """
    if not any(name in ("", tool.name) for tool in tools):
        raise RequestError(400, "invalid_value", "tool_choice names no tool that is offered", "tool_choice")
    return Constraint("call", name, parallel=parallel)


@dataclass(frozen=True, slots=True)
class CallSaid:
    """A call of an assistant's turn, as a client sends it back."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """A message of any protocol: of a system, user or assistant; or, with ``answers``, what a tool answered to a call
    of that id."""

    role: str
    text: str
    calls: tuple[CallSaid, ...] = ()
    answers: str | None = None


def chat_of(messages: Iterable[Said]) -> tuple[ChatMessage, ...]:
    """The messages as chat templates take them, calls and answers named by their places as in
    :func:`marft.game.rendering.exchange`: so a prompt does not depend on what a client calls them.

    Raises:
        RequestError: there is none, or an answer belongs to no call of the turn before it that still has none.
    """
    chat, open_calls = list[ChatMessage](), dict[str, list[tuple[str, str]]]()
    for message in messages:
        if message.answers is not None:
            if not open_calls.get(message.answers):
                raise RequestError(
                    400, "invalid_value",
                    "a tool's answer must follow on the turn that calls it, under the id of a call that has none yet",
                    "messages",
                )  # fmt: skip
            place, name = open_calls[message.answers].pop(0)  # the first of those of one id that has no answer
            chat.append({"role": "tool", "name": name, "tool_call_id": place, "content": message.text})
            continue
        places = [(f"call{number:05d}", call) for number, call in enumerate(message.calls)]
        open_calls = {}
        for place, call in places:
            open_calls.setdefault(call.id, []).append((place, call.name))
        turn: dict[str, object] = {"role": message.role, "content": message.text}
        if places:
            turn["tool_calls"] = [
                {
                    "type": "function",
                    "id": place,
                    "function": {"name": call.name, "arguments": arguments_of(call.arguments)},
                }
                for place, call in places
            ]
        chat.append(turn)
    if not chat:
        raise RequestError(400, "invalid_value", "a chat has at least one message", "messages")
    return tuple(chat)
