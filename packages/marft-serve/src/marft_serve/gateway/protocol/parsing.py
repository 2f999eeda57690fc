"""Request parsing: strictly typed models, and message conversion for chat templates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marft.agents.chat import Constraint
from marft.agents.prompt_messages import ChatMessage, parse_arguments
from marft.common.errors import UserError
from marft.common.texts import replace_surrogates
from marft.common.types import Tool
from marft_serve.gateway.errors import RequestError, invalid_error

MAX_NUMBER_DIGITS = 400  # digits
MAX_ACTIONS = 64  # per request
MAX_STOPS = 16
MAX_ALTERNATIVES = 20  # per token
MAX_MESSAGES = 8192  # per chat; also the maximum number of parts per message
MAX_TOOLS = 512
MAX_CONTAINERS = 2**15  # tables and lists per request
MAX_VALUES = 2**18
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class RequestModel(BaseModel):
    """Part of a request; :mod:`.fields` handles unnamed fields."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


ModelT = TypeVar("ModelT", bound=RequestModel)
Count = Annotated[int, Field(ge=1, lt=2**31)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS)] | Stop | None
Schema = dict[str, object]


def parse_body(model: type[ModelT], body: bytes) -> ModelT:
    """Parse and validate a request's body.

    Raises:
        RequestError: the body is invalid; the message names the field and the reason.
    """
    check_size(body)
    try:
        parsed = model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"]))[:200]
        message = replace_surrogates(f"{location + ': ' if location else ''}{first['msg']}")
        raise invalid_error(message, location or None) from None
    parse_json(body)
    return parsed


def parse_json(body: bytes) -> object:
    """Parse JSON, with bounded numbers.

    Raises:
        RequestError: the body is not JSON, or a number is not finite or has too many digits.
    """
    try:
        return json.loads(body, parse_constant=_parse_float, parse_float=_parse_float, parse_int=_parse_int)
    except ValueError as error:
        raise invalid_error(str(error)) from None
    except RecursionError:
        raise invalid_error("tables and lists nest too deep") from None


def check_size(body: bytes, max_containers: int = MAX_CONTAINERS, max_values: int = MAX_VALUES) -> None:
    """Check the number of parts in a body, to keep parsing from blocking other requests.

    Args:
        body: the body.
        max_containers: maximum number of tables and lists.
        max_values: maximum number of values.

    Raises:
        RequestError: the body has more parts.
    """
    if body.count(b"{") + body.count(b"[") <= max_containers and body.count(b",") <= max_values:
        return
    bare = JSON_STRING.sub(b"", body)  # texts may contain any number of these characters
    containers = bare.count(b"{") + bare.count(b"[")
    for count, limit, label in (
        (containers, max_containers, "tables and lists"),
        (bare.count(b","), max_values, "values"),
    ):
        if count > limit:
            raise invalid_error(f"a request has at most {limit} {label}, and this one has {count}")


def _parse_int(text: str) -> int:
    if len(text) > MAX_NUMBER_DIGITS:
        raise UserError(f"a number has at most {MAX_NUMBER_DIGITS} digits, and one has {len(text)}")
    return int(text)


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise UserError(f"{text[:32]} is no finite number, and no response could say it")
    return number


def unsupported_error(field: str, reason: str) -> RequestError:
    """Return the error for an unsupported field or value."""
    return RequestError(400, "unsupported_parameter", f"{field}: {reason}", field)


class Part(RequestModel):
    """Part of a message's content."""

    type: str
    text: str | None = None


Parts = Annotated[list[Part], Field(max_length=MAX_MESSAGES)]
Content = str | Parts | None


def extract_text(content: Content, texts: Sequence[str] = ("text",)) -> str:
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
            raise unsupported_error(
                "content", f"a part is of type {replace_surrogates(part.type)[:64]!r}, and agents read text alone"
            )
    return join_parts(part.text or "" for part in content)


def join_parts(parts: Iterable[str]) -> str:
    """Join a message's parts into a single text.

    Like vLLM, put a line break between two parts, unless there is white space already. Empty parts are left out.

    >>> join_parts(["Is it 3?", "", "Or 4?"]), join_parts(["Is it ", "3?"])
    ('Is it 3?\\nOr 4?', 'Is it 3?')
    """
    texts = list[str]()
    for part in filter(None, parts):
        if texts and not (texts[-1][-1].isspace() or part[0].isspace()):
            texts.append("\n")
        texts.append(part)
    return "".join(texts)


def normalize_stop(stop: list[str] | str | None) -> tuple[str, ...]:
    """Return a request's stop sequences."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def build_call_constraint(tools: Sequence[Tool], name: str, parallel: bool) -> Constraint:
    """Return the constraint for an answer with a mandatory tool call.

    Args:
        tools: the offered tools.
        name: name of the tool; "" for any tool.
        parallel: True to allow several calls.

    Raises:
        RequestError: the tool is not offered.
    """
    if not any(name in ("", tool.name) for tool in tools):
        raise invalid_error("tool_choice names no tool that is offered", "tool_choice")
    return Constraint("call", name, allow_parallel_calls=parallel)


@dataclass(frozen=True, slots=True)
class ClientToolCall:
    """Tool call in an assistant turn, from a client's request."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """Protocol-independent message from a client.

    Args:
        role: role of the message.
        text: text of the message.
        calls: tool calls of an assistant turn.
        tool_call_id: for a tool result, the id of its tool call.
    """

    role: str
    text: str
    calls: tuple[ClientToolCall, ...] = ()
    tool_call_id: str | None = None


def build_chat_messages(messages: Iterable[ClientMessage], allow_partial: bool = False) -> tuple[ChatMessage, ...]:
    """Convert messages for chat templates.

    The ids of tool calls are replaced by their positions, as in
    :func:`marft.agents.prompt_messages.tool_call_messages`. So a prompt does not depend on the ids of a client. The
    results of a turn's calls are in the order of the calls, since many templates show no ids. A turn whose calls all
    lack a result stays unchanged.

    Args:
        messages: the messages.
        allow_partial: True to allow a turn in which only some calls have a result.

    Raises:
        RequestError: there are no messages; two calls of a turn have the same id; a result belongs to no call of the
            previous turn, or to a call that already has a result; only some calls of a turn have a result.
    """
    chat, open_calls = list[ChatMessage](), _OpenCalls()
    for message in messages:
        if message.tool_call_id is not None:
            open_calls.add_result(message.tool_call_id, message.text)
            continue
        chat += open_calls.close(allow_partial)
        open_calls = _OpenCalls.from_calls(message.calls)
        turn: dict[str, object] = {"role": message.role, "content": message.text}
        if message.calls:
            turn["tool_calls"] = [
                {
                    "type": "function",
                    "id": _format_call_id(number),
                    "function": {"name": call.name, "arguments": parse_arguments(call.arguments)},
                }
                for number, call in enumerate(message.calls)
            ]
        chat.append(turn)
    chat += open_calls.close(allow_partial)
    if not chat:
        raise _invalid_messages_error("a chat has at least one message")
    return tuple(chat)


def get_prefix(messages: Sequence[ClientMessage]) -> str:
    """Return the last message's text, for the assistant to continue.

    Raises:
        RequestError: the last message is not from the assistant, or has tool calls.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        raise _invalid_messages_error("the last message is not the assistant's: there is no turn to continue")
    if last.calls:
        raise _invalid_messages_error(
            "the last message calls tools: send their answers, for such a turn cannot be continued"
        )
    return last.text


@dataclass(frozen=True, slots=True)
class _OpenCalls:
    """Tool calls in a turn, by id and in order, with the results so far."""

    names: Mapping[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def from_calls(calls: Sequence[ClientToolCall]) -> _OpenCalls:
        """Create the open calls for a turn."""
        names = {call.id: call.name for call in calls}
        if len(names) < len(calls):
            raise _invalid_messages_error(
                "two calls of a turn have the same id: no answer could be told from the other's"
            )
        return _OpenCalls(names)

    def add_result(self, id_: str, text: str) -> None:
        """Add a call's result."""
        name = replace_surrogates(id_)[:64]
        if id_ not in self.names:
            raise _invalid_messages_error(
                f"the answer to {name!r} belongs to no call of the assistant's turn before it"
            )
        if id_ in self.results:
            raise _invalid_messages_error(f"the call {name!r} has two answers")
        self.results[id_] = text

    def close(self, allow_partial: bool) -> Iterator[ChatMessage]:
        """Yield the results in call order."""
        missing = [id_ for id_ in self.names if id_ not in self.results]
        if missing and self.results and not allow_partial:
            listed = replace_surrogates(", ".join(missing))[:500]
            raise _invalid_messages_error(
                f"these calls of a turn have no answer right after it, and others have: {listed}"
            )
        for number, (id_, name) in enumerate(self.names.items()):
            if id_ in self.results:
                yield {
                    "role": "tool",
                    "name": name,
                    "tool_call_id": _format_call_id(number),
                    "content": self.results[id_],
                }


def _format_call_id(number: int) -> str:
    return f"call{number:05d}"


def _invalid_messages_error(message: str) -> RequestError:
    return invalid_error(message, "messages")
