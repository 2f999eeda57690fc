"""Parser for OpenAI messages, the common format for every kind of trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marft.agents.rendering import ChatMessage
from marft.common.texts import storable
from marft.common.thoughts import bare_thought, thought
from marft.common.types import Tool, ToolCall
from marft.inference.tool_format import DEPTH
from marft_serve.gateway.protocol.reading import CallSaid, Said, chat_of, joined
from marft_serve.gateway.refusals import RequestError
from marft_serve.traces.record import UNNAMED, UnreadableError

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "ai": "assistant", "model": "assistant", "tool": "tool", "function": "tool",
}  # fmt: skip
TEXTS = ("text", "input_text", "output_text")  # types of text parts
ARGUMENTS = ("arguments", "input", "parameters", "args")  # keys for the arguments of a tool call
# further known keys of a tool call
BESIDE_ARGUMENTS = ("name", "id", "call_id", "type", "index", "function", "description")


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """Message of a trace.

    Args:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        text: text of the message.
        name: name of the agent; "" if unknown.
        thought: reasoning of an assistant message.
        calls: tool calls of an assistant message.
        answers: for a tool message, the id of its tool call.
        weight: 0 for an assistant message that is not trained, else 1.
    """

    role: str
    text: str
    name: str = ""
    thought: str = ""
    calls: tuple[CallSaid, ...] = ()
    answers: str = ""
    weight: float = 1.0


def message_of(table: object) -> TracedMessage:
    """Parse an OpenAI message.

    The format is Chat Completions, with the older ``function_call`` and the reasoning fields of some models.

    Raises:
        UnreadableError: the value is not a message, or has unsupported content such as an image.
    """
    if not isinstance(table, Mapping):
        raise UnreadableError(f"a message is a {type(table).__name__}, not an object")
    role = ROLES.get(str(table.get("role")).lower(), "")
    if not role:
        raise UnreadableError(f"a message has the role {str(table.get('role'))[:40]!r}")
    text = text_of(table.get("content"))
    reasoning = table.get("reasoning_content") or table.get("reasoning")
    own = text_of(reasoning) if role == "assistant" and isinstance(reasoning, str) else ""
    if role == "assistant" and not own and (size := thought(text)):
        own, text = bare_thought(text[:size]), text[size:]
    if role == "assistant" and not text and isinstance(table.get("refusal"), str):
        text = text_of(table["refusal"])
    return TracedMessage(
        role=role,
        text=text,
        name=_word(table.get("name")),
        thought=own,
        calls=calls_of(table) if role == "assistant" else (),
        answers=_word(table.get("tool_call_id")),
        weight=weight_of(table.get("weight")),
    )


def weight_of(value: object) -> float:
    """Return a turn's training weight; 1 by default.

    Raises:
        UnreadableError: the weight is neither 0 nor 1.
    """
    if value is None or (isinstance(value, int | float) and value == 1):
        return 1.0
    if isinstance(value, int | float) and value == 0:
        return 0.0
    raise UnreadableError(f"a message has the weight {str(value)[:40]}; 0 and 1 are known")


def text_of(content: object) -> str:
    """Return the text in a message's content: plain text, or a list with text parts.

    Raises:
        UnreadableError: a part is not text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return storable(content)
    if not isinstance(content, list):
        raise UnreadableError(f"a message's content is a {type(content).__name__}")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        found = part.get("text", part.get("content")) if isinstance(part, Mapping) else part
        if kind not in TEXTS or not isinstance(found, str):
            raise UnreadableError(f"a message holds a part of type {str(kind)[:40]!r}, and agents read text alone")
        texts.append(storable(found))
    return joined(texts)


def calls_of(table: Mapping[str, Any]) -> tuple[CallSaid, ...]:
    """Return an assistant message's tool calls.

    Raises:
        UnreadableError: the value is not a list of tool calls, a call has no tool name, or its arguments are invalid.
    """
    listed, single = _from_json(table.get("tool_calls")), _from_json(table.get("function_call"))
    if not isinstance(listed or [], list) or not isinstance(single or {}, Mapping):
        raise UnreadableError(f"the calls of a message are no list: {str(listed or single)[:80]!r}")
    calls = []
    for number, call in enumerate([*(listed or []), *([{"function": single}] if single else [])]):
        function = _from_json(call.get("function", call)) if isinstance(call, Mapping) else None
        name = _word(function.get("name")) if isinstance(function, Mapping) else ""
        if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not name:
            raise UnreadableError("a call names no tool")
        given = arguments(_given({**call, **function}, name), name)
        calls.append(CallSaid(_word(call.get("id")) or unnamed(name, number), name, given))
    return tuple(calls)


def _given(call: Mapping[str, Any], tool: str) -> object:
    """Return a tool call's arguments, under any key in ``ARGUMENTS``; None without arguments.

    Raises:
        UnreadableError: none of the keys exists, but an unknown key may contain the arguments.
    """
    given = [call[key] for key in ARGUMENTS if call.get(key) is not None]
    others = [key for key, value in call.items() if value is not None and key not in (*ARGUMENTS, *BESIDE_ARGUMENTS)]
    if not given and others:
        raise UnreadableError(f"a call of {tool!r} has no arguments, and the unknown key {str(others[0])[:40]!r}")
    return given[0] if given else None


def unnamed(tool: str, place: int) -> str:
    """Return the default id of a tool call without an id."""
    return f"{tool}/{place}"


def arguments(value: object, tool: str = "a tool") -> str:
    """Return a tool call's arguments in JSON; text stays unchanged.

    >>> arguments({"a": 1}), arguments('{"a": 1}'), arguments(None)
    ('{"a": 1}', '{"a": 1}', '{}')

    Raises:
        UnreadableError: the arguments are not a JSON object, so the call's effect is unknown.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        found = json.loads(text, parse_constant=_refuse)
        # escape sequences may encode lone surrogates
        read = text + json.dumps(found, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        found, read = None, ""
    if not isinstance(found, dict) or _deeper(found, DEPTH) or storable(read) != read:
        raise UnreadableError(f"the arguments of a call of {tool!r} are no JSON object: {str(value)[:80]!r}")
    return text


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def answered(messages: Sequence[TracedMessage]) -> list[TracedMessage]:
    """Assign a unique id to each tool call, and to each tool result the id of its call.

    A result belongs to the turn before it: to the first call without a result that has the same id. Without ids,
    the same name or no name is enough. A result with an id may also belong to an earlier turn. A result without an
    id goes first to a call without an id. A result without a matching call keeps its id.
    """
    named, turns = list[TracedMessage](), list[dict[str, tuple[CallSaid, bool]]]()  # calls without a result, by turn
    for number, message in enumerate(messages):
        if message.role == "assistant" and message.calls:
            given = [call.id != unnamed(call.name, place) for place, call in enumerate(message.calls)]
            calls = [replace(call, id=f"{number}/{place}") for place, call in enumerate(message.calls)]
            turns.append({new.id: (call, known) for new, call, known in zip(calls, message.calls, given, strict=True)})
            message = replace(message, calls=tuple(calls))
        elif message.role == "tool":
            able = [(id, known) for id, (call, known) in _open(turns, message) if _answers(message, call, known)]
            found = min(able, key=lambda call: call[1] != bool(message.answers), default=("", False))[0]
            message = replace(message, answers=found or message.answers or message.name)
            for turn in turns:
                turn.pop(found, None)
        named.append(message)
    return named


def _open(
    turns: Sequence[Mapping[str, tuple[CallSaid, bool]]], message: TracedMessage
) -> Iterator[tuple[str, tuple[CallSaid, bool]]]:
    """Yield possible calls for a tool result, starting with the last turn's."""
    yield from turns[-1].items() if turns else ()
    for turn in reversed(turns[:-1]):
        yield from (item for item in turn.items() if message.answers and item[1][1])


def _answers(message: TracedMessage, call: CallSaid, given: bool) -> bool:
    """Return True if a tool message may belong to a tool call.

    Args:
        message: the tool message.
        call: the tool call.
        given: True if the call has an explicit id.
    """
    if message.answers and given:
        return message.answers == call.id
    return not message.name or message.name == call.name


def chat(messages: Sequence[TracedMessage], agent: str) -> tuple[ChatMessage, ...]:
    """Return a chat from a single agent's view.

    The agent's own turns have the role ``assistant``. Messages of other agents become user messages without tool
    calls, in the format of :func:`marft.agents.rendering.compose`.

    Raises:
        UnreadableError: the chat is empty, or a tool result belongs to no earlier call.
    """
    said, others = list[Said](), set[str]()
    for message in messages:
        mine = message.name in (agent, "") or agent == UNNAMED
        if message.role == "assistant" and not mine:
            others |= {call.id for call in message.calls}
            if message.text:
                said.append(Said("user", f"Message from {message.name}:\n{message.text}"))
        elif message.role == "assistant":
            said.append(Said("assistant", message.text, message.calls))
            others -= {call.id for call in message.calls}
        elif message.role == "tool" and message.answers not in others:
            if not any(one.role == "assistant" and one.calls for one in said):
                raise UnreadableError("a tool answers, and no turn before has tool_calls: calls in texts are not read")
            said.append(Said("tool", message.text, (), message.answers))
        elif message.role != "tool":
            said.append(Said(message.role, message.text))
    try:
        return chat_of(said, partly=True)
    except RequestError as error:
        raise UnreadableError(error.message) from error


def tools_of(listed: object) -> tuple[Tool, ...]:
    """Return the tools in OpenAI's ``tools`` or ``functions``; entries without a name are ignored."""
    tools, listed = [], _from_json(listed)
    for one in listed if isinstance(listed, list) else ():
        function = one.get("function", one) if isinstance(one, Mapping) else None
        name = _word(function.get("name")) if isinstance(function, Mapping) else ""
        if isinstance(function, Mapping) and name:
            schema = function.get("parameters", function.get("input_schema"))
            parameters = schema if isinstance(schema, Mapping) and not _deeper(schema, DEPTH) else {}
            description = function.get("description")
            tools.append(Tool(name, storable(description) if isinstance(description, str) else "", parameters))
    return tuple(tools)


def made(calls: Sequence[CallSaid], answers: Mapping[int, str]) -> tuple[tuple[ToolCall, ...], tuple[int, ...]]:
    """Return a turn's tool calls with their results, and the positions without a result.

    Args:
        calls: tool calls of the turn.
        answers: results by position.
    """
    unanswered = tuple(place for place in range(len(calls)) if place not in answers)
    called = tuple(ToolCall(call.name, call.arguments, answers.get(place, "")) for place, call in enumerate(calls))
    return called, unanswered


def _from_json(value: object) -> Any:
    """Parse JSON text; return different values unchanged."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _word(value: object) -> str:
    """Convert a name or id to text with up to 256 characters; "" for other types."""
    return storable(str(value))[:256] if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _deeper(value: object, depth: int) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return depth == 0 or any(_deeper(one, depth - 1) for one in inner)
