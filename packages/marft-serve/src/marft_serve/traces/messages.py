"""Messages in OpenAI's words, read as far as they mean something: what every format of traces is first brought to."""

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
TEXTS = ("text", "input_text", "output_text")  # types of parts that are text
ARGUMENTS = ("arguments", "input", "parameters", "args")  # of a call: keys that hold its arguments
BESIDE_ARGUMENTS = ("name", "id", "call_id", "type", "index", "function", "description")  # and those that hold none


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """One message of a trace.

    Args:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        answers: the call that a tool's message answers.
        weight: of an assistant's; 0 is not to be trained.
    """

    role: str
    text: str
    name: str = ""
    thought: str = ""
    calls: tuple[CallSaid, ...] = ()
    answers: str = ""
    weight: float = 1.0


def message_of(table: object) -> TracedMessage:
    """A message in OpenAI's words: Chat Completions', with what the older ``function_call`` and reasoning models add.

    Raises:
        UnreadableError: it is none, or holds what agents cannot read, such as a picture.
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
    """Whether a turn is trained: 1 where nothing is said.

    Raises:
        UnreadableError: it is neither 0 nor 1, which nothing is said to mean.
    """
    if value is None or (isinstance(value, int | float) and value == 1):
        return 1.0
    if isinstance(value, int | float) and value == 0:
        return 0.0
    raise UnreadableError(f"a message has the weight {str(value)[:40]}; 0 and 1 are known")


def text_of(content: object) -> str:
    """The text of a message's content: a text, or parts that are.

    Raises:
        UnreadableError: a part of it is something else.
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
    """Return the calls of an assistant's message.

    Raises:
        UnreadableError: they are no list of calls, one names no tool, or its arguments cannot be read.
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
    """Return the arguments of a tool call, under any of the keys in ``ARGUMENTS``; None if it has none.

    Raises:
        UnreadableError: it has none, and a key that may hold them.
    """
    given = [call[key] for key in ARGUMENTS if call.get(key) is not None]
    others = [key for key, value in call.items() if value is not None and key not in (*ARGUMENTS, *BESIDE_ARGUMENTS)]
    if not given and others:
        raise UnreadableError(f"a call of {tool!r} has no arguments, and the unknown key {str(others[0])[:40]!r}")
    return given[0] if given else None


def unnamed(tool: str, place: int) -> str:
    """Return the id of a turn's call that was given none."""
    return f"{tool}/{place}"


def arguments(value: object, tool: str = "a tool") -> str:
    """Return the arguments of a call as the JSON of an object; a text stays as it was written.

    >>> arguments({"a": 1}), arguments('{"a": 1}'), arguments(None)
    ('{"a": 1}', '{"a": 1}', '{}')

    Raises:
        UnreadableError: they are none: nobody can say what the call would have done.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        found = json.loads(text, parse_constant=_refuse)
        read = text + json.dumps(found, ensure_ascii=False, allow_nan=False)  # escapes may hide half characters
    except (ValueError, TypeError, RecursionError):
        found, read = None, ""
    if not isinstance(found, dict) or _deeper(found, DEPTH) or storable(read) != read:
        raise UnreadableError(f"the arguments of a call of {tool!r} are no JSON object: {str(value)[:80]!r}")
    return text


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def answered(messages: Sequence[TracedMessage]) -> list[TracedMessage]:
    """Return the messages with an id of its own for each call, and for each answer that of the call that it answers.

    An answer is of the turn before it: of the first call without one that has its id, or, where ids are not given, its
    name, or neither. An answer with an id may also be of an earlier turn, and one without goes to a call without one
    first. One that answers nothing keeps what it says.
    """
    named, turns = list[TracedMessage](), list[dict[str, tuple[CallSaid, bool]]]()  # calls without an answer, by turn
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
    """Yield the calls that a message may answer, those of the last turn first."""
    yield from turns[-1].items() if turns else ()
    for turn in reversed(turns[:-1]):
        yield from (item for item in turn.items() if message.answers and item[1][1])


def _answers(message: TracedMessage, call: CallSaid, given: bool) -> bool:
    """Return whether a tool's message may be the answer to a call.

    Args:
        given: whether the call has an id of its own.
    """
    if message.answers and given:
        return message.answers == call.id
    return not message.name or message.name == call.name


def chat(messages: Sequence[TracedMessage], agent: str) -> tuple[ChatMessage, ...]:
    """A chat as the model of one agent is shown it: its own turns are the assistant's; what others said is told by
    users, as :func:`marft.agents.rendering.compose` tells it, without their calls.

    Raises:
        UnreadableError: there is nothing, or an answer belongs to no call before it.
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
    """What a model was offered, from OpenAI's ``tools`` or ``functions``; what names no tool is none."""
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
    """A turn's calls with what tools answered, and the places of those of which nobody says.

    Args:
        answers: by the call's place.
    """
    unanswered = tuple(place for place in range(len(calls)) if place not in answers)
    called = tuple(ToolCall(call.name, call.arguments, answers.get(place, "")) for place, call in enumerate(calls))
    return called, unanswered


def _from_json(value: object) -> Any:
    """Return what a text says as JSON; a text that is none, and what is no text, as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _word(value: object) -> str:
    """A name, or an id."""
    return storable(str(value))[:256] if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _deeper(value: object, depth: int) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return depth == 0 or any(_deeper(one, depth - 1) for one in inner)
