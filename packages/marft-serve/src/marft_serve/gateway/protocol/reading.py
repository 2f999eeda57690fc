"""Request parsing: strictly typed models, and message conversion for chat templates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marft.agents.chat import Constraint
from marft.agents.rendering import ChatMessage, arguments_of
from marft.common.texts import storable
from marft.common.types import Tool
from marft_serve.gateway.refusals import RequestError

LONGEST_NUMBER = 400  # digits
MOST_ACTIONS = 64  # per request
MOST_STOPS = 16
MOST_ALTERNATIVES = 20  # per token
MOST_MESSAGES = 8192  # per chat; also the maximum number of parts per message
MOST_TOOLS = 512
MOST_TABLES = 2**15  # tables and lists per request
MOST_VALUES = 2**18
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class Table(BaseModel):
    """Part of a request; :mod:`.fields` handles unnamed fields."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


Read = TypeVar("Read", bound=Table)
Count = Annotated[int, Field(ge=1, lt=2**31)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Annotated[list[Stop], Field(max_length=MOST_STOPS)] | Stop | None
Schema = dict[str, Any]


def read(kind: type[Read], body: bytes) -> Read:
    """Parse and validate a request's body.

    Raises:
        RequestError: the body is invalid; the message names the field and the reason.
    """
    check_size(body)
    try:
        table = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:200]
        message = storable(f"{where + ': ' if where else ''}{first['msg']}")
        raise RequestError(400, "invalid_value", message, where or None) from None
    read_json(body)
    return table


def read_json(body: bytes) -> Any:
    """Parse JSON, with bounded numbers.

    Raises:
        RequestError: the body is not JSON, or a number is not finite or has too many digits.
    """
    try:
        return json.loads(body, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    except ValueError as error:
        raise RequestError(400, "invalid_value", str(error)) from None
    except RecursionError:
        raise RequestError(400, "invalid_value", "tables and lists nest too deep") from None


def check_size(body: bytes, most_tables: int = MOST_TABLES, most_values: int = MOST_VALUES) -> None:
    """Check the number of parts in a body, to keep parsing from blocking other requests.

    Args:
        body: the body.
        most_tables: maximum number of tables and lists.
        most_values: maximum number of values.

    Raises:
        RequestError: the body has more parts.
    """
    if body.count(b"{") + body.count(b"[") <= most_tables and body.count(b",") <= most_values:
        return
    bare = STRING.sub(b"", body)  # texts may contain any number of these characters
    tables = bare.count(b"{") + bare.count(b"[")
    for count, most, what in ((tables, most_tables, "tables and lists"), (bare.count(b","), most_values, "values")):
        if count > most:
            raise RequestError(400, "invalid_value", f"a request has at most {most} {what}, and this one has {count}")


def _whole(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number has at most {LONGEST_NUMBER} digits, and one has {len(text)}")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:32]} is no finite number, and no response could say it")
    return number


def unsupported(field: str, why: str) -> RequestError:
    """Return the error for an unsupported field or value."""
    return RequestError(400, "unsupported_parameter", f"{field}: {why}", field)


class Part(Table):
    """Part of a message's content."""

    type: str
    text: str | None = None


Parts = Annotated[list[Part], Field(max_length=MOST_MESSAGES)]
Content = str | Parts | None


def text_of(content: Content, texts: Sequence[str] = ("text",)) -> str:
    """Return a message's text.

    Args:
        content: content of the message.
        texts: types of parts that contain text.

    Raises:
        RequestError: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in texts or part.text is None:
            raise unsupported("content", f"a part is of type {storable(part.type)[:64]!r}, and agents read text alone")
    return joined(part.text or "" for part in content)


def joined(parts: Iterable[str]) -> str:
    """Join a message's parts into a single text.

    Like vLLM, put a line break between two parts, unless there is white space already. Empty parts are left out.

    >>> joined(["Is it 3?", "", "Or 4?"]), joined(["Is it ", "3?"])
    ('Is it 3?\\nOr 4?', 'Is it 3?')
    """
    said = list[str]()
    for part in filter(None, parts):
        if said and not (said[-1][-1].isspace() or part[0].isspace()):
            said.append("\n")
        said.append(part)
    return "".join(said)


def stops_of(stop: list[str] | str | None) -> tuple[str, ...]:
    """Return a request's stop sequences."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def forced_call(tools: Sequence[Tool], name: str, parallel: bool) -> Constraint:
    """Return the constraint for an answer with a mandatory tool call.

    Args:
        tools: the offered tools.
        name: name of the tool; "" for any tool.
        parallel: True to allow several calls.

    Raises:
        RequestError: the tool is not offered.
    """
    if not any(name in ("", tool.name) for tool in tools):
        raise RequestError(400, "invalid_value", "tool_choice names no tool that is offered", "tool_choice")
    return Constraint("call", name, parallel=parallel)


@dataclass(frozen=True, slots=True)
class CallSaid:
    """Tool call in an assistant turn, from a client's request."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """Protocol-independent message from a client.

    Args:
        role: role of the message.
        text: text of the message.
        calls: tool calls of an assistant turn.
        answers: for a tool result, the id of its tool call.
    """

    role: str
    text: str
    calls: tuple[CallSaid, ...] = ()
    answers: str | None = None


def chat_of(messages: Iterable[Said], partly: bool = False) -> tuple[ChatMessage, ...]:
    """Convert messages for chat templates.

    The ids of tool calls are replaced by their positions, as in :func:`marft.agents.rendering.exchange`. So a
    prompt does not depend on the ids of a client. The results of a turn's calls are in the order of the calls,
    since many templates show no ids. A turn whose calls all lack a result stays unchanged.

    Args:
        messages: the messages.
        partly: True to allow a turn in which only some calls have a result.

    Raises:
        RequestError: there are no messages; two calls of a turn have the same id; a result belongs to no call of the
            previous turn, or to a call that already has a result; only some calls of a turn have a result.
    """
    chat, calls = list[ChatMessage](), _OpenCalls()
    for message in messages:
        if message.answers is not None:
            calls.answer(message.answers, message.text)
            continue
        chat += calls.close(partly)
        calls = _OpenCalls.of(message.calls)
        turn: dict[str, object] = {"role": message.role, "content": message.text}
        if message.calls:
            turn["tool_calls"] = [
                {
                    "type": "function",
                    "id": _place(number),
                    "function": {"name": call.name, "arguments": arguments_of(call.arguments)},
                }
                for number, call in enumerate(message.calls)
            ]
        chat.append(turn)
    chat += calls.close(partly)
    if not chat:
        raise _invalid("a chat has at least one message")
    return tuple(chat)


def turn_to_continue(messages: Sequence[Said]) -> str:
    """Return the last message's text, for the assistant to continue.

    Raises:
        RequestError: the last message is not from the assistant, or has tool calls.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        raise _invalid("the last message is not the assistant's: there is no turn to continue")
    if last.calls:
        raise _invalid("the last message calls tools: send their answers, for such a turn cannot be continued")
    return last.text


@dataclass(frozen=True, slots=True)
class _OpenCalls:
    """Tool calls in a turn, by id and in order, with the results so far."""

    names: Mapping[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(calls: Sequence[CallSaid]) -> _OpenCalls:
        """Create the open calls for a turn."""
        names = {call.id: call.name for call in calls}
        if len(names) < len(calls):
            raise _invalid("two calls of a turn have the same id: no answer could be told from the other's")
        return _OpenCalls(names)

    def answer(self, id_: str, text: str) -> None:
        """Add a call's result."""
        name = storable(id_)[:64]
        if id_ not in self.names:
            raise _invalid(f"the answer to {name!r} belongs to no call of the assistant's turn before it")
        if id_ in self.answers:
            raise _invalid(f"the call {name!r} has two answers")
        self.answers[id_] = text

    def close(self, partly: bool) -> Iterator[ChatMessage]:
        """Yield the results in call order."""
        missing = [id_ for id_ in self.names if id_ not in self.answers]
        if missing and self.answers and not partly:
            listed = storable(", ".join(missing))[:500]
            raise _invalid(f"these calls of a turn have no answer right after it, and others have: {listed}")
        for number, (id_, name) in enumerate(self.names.items()):
            if id_ in self.answers:
                yield {"role": "tool", "name": name, "tool_call_id": _place(number), "content": self.answers[id_]}


def _place(number: int) -> str:
    return f"call{number:05d}"


def _invalid(message: str) -> RequestError:
    return RequestError(400, "invalid_value", message, "messages")
