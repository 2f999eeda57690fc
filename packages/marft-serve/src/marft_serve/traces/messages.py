"""Parser for OpenAI messages, the common format for every kind of trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from marft.agents.prompt_messages import ChatMessage, format_message
from marft.common.errors import UserError
from marft.common.reasoning import measure_reasoning, strip_delimiters
from marft.common.texts import parse_json_text, replace_surrogates
from marft.common.types import Tool, ToolCall
from marft.config.interfaces.channel import Message
from marft.inference.call_values import MAX_DEPTH, exceeds_depth
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol.parsing import ClientMessage, ClientToolCall, build_chat_messages, join_parts
from marft_serve.traces.types import DEFAULT_AGENT_NAME, UnreadableError

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "ai": "assistant", "model": "assistant", "tool": "tool", "function": "tool",
}  # fmt: skip
TEXT_TYPES = ("text", "input_text", "output_text")  # types of text parts
ARGUMENT_KEYS = ("arguments", "input", "parameters", "args")  # keys for the arguments of a tool call
# further known keys of a tool call
OTHER_CALL_KEYS = ("name", "id", "call_id", "type", "index", "function", "description")


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """Message of a trace.

    Args:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        text: text of the message.
        name: name of the agent; "" if unknown.
        reasoning: reasoning of an assistant message.
        calls: tool calls of an assistant message.
        tool_call_id: for a tool message, the id of its tool call.
        weight: 0 for an assistant message that is not trained, else 1.
    """

    role: str
    text: str
    name: str = ""
    reasoning: str = ""
    calls: tuple[ClientToolCall, ...] = ()
    tool_call_id: str = ""
    weight: float = 1.0


def parse_message(table: object) -> TracedMessage:
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
    text = parse_text(table.get("content"))
    reasoning_field = table.get("reasoning_content") or table.get("reasoning")
    reasoning = parse_text(reasoning_field) if role == "assistant" and isinstance(reasoning_field, str) else ""
    if role == "assistant" and not reasoning and (size := measure_reasoning(text)):
        reasoning, text = strip_delimiters(text[:size]), text[size:]
    if role == "assistant" and not text and isinstance(table.get("refusal"), str):
        text = parse_text(table["refusal"])
    return TracedMessage(
        role=role,
        text=text,
        name=_to_name(table.get("name")),
        reasoning=reasoning,
        calls=parse_calls(table) if role == "assistant" else (),
        tool_call_id=_to_name(table.get("tool_call_id")),
        weight=parse_weight(table.get("weight")),
    )


def parse_weight(value: object) -> float:
    """Return a turn's training weight; 1 by default.

    Raises:
        UnreadableError: the weight is neither 0 nor 1.
    """
    if value is None or (isinstance(value, int | float) and value == 1):
        return 1.0
    if isinstance(value, int | float) and value == 0:
        return 0.0
    raise UnreadableError(f"a message has the weight {str(value)[:40]}; 0 and 1 are known")


def parse_text(content: object) -> str:
    """Return the text in a message's content: plain text, or a list with text parts.

    Raises:
        UnreadableError: a part is not text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return replace_surrogates(content)
    if not isinstance(content, list):
        raise UnreadableError(f"a message's content is a {type(content).__name__}")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part.get("text", part.get("content")) if isinstance(part, Mapping) else part
        if kind not in TEXT_TYPES or not isinstance(text, str):
            raise UnreadableError(f"a message holds a part of type {str(kind)[:40]!r}, and agents read text alone")
        texts.append(replace_surrogates(text))
    return join_parts(texts)


def parse_calls(table: Mapping[str, object]) -> tuple[ClientToolCall, ...]:
    """Return an assistant message's tool calls.

    Raises:
        UnreadableError: the value is not a list of tool calls, a call has no tool name, or its arguments are invalid.
    """
    listed, single = parse_json_text(table.get("tool_calls")), parse_json_text(table.get("function_call"))
    if not isinstance(listed or [], list) or not isinstance(single or {}, Mapping):
        raise UnreadableError(f"the calls of a message are no list: {str(listed or single)[:80]!r}")
    calls = []
    for number, call in enumerate([*(listed or []), *([{"function": single}] if single else [])]):
        function = parse_json_text(call.get("function", call)) if isinstance(call, Mapping) else None
        name = _to_name(function.get("name")) if isinstance(function, Mapping) else ""
        if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not name:
            raise UnreadableError("a call names no tool")
        call_arguments = normalize_arguments(_find_arguments({**call, **function}, name), name)
        calls.append(ClientToolCall(_to_name(call.get("id")) or default_call_id(name, number), name, call_arguments))
    return tuple(calls)


def _find_arguments(call: Mapping[str, object], tool: str) -> object:
    """Return a tool call's arguments, under any key in ``ARGUMENT_KEYS``; None without arguments.

    Raises:
        UnreadableError: none of the keys exists, but an unknown key may contain the arguments.
    """
    candidates = [call[key] for key in ARGUMENT_KEYS if call.get(key) is not None]
    unknown_keys = [
        key for key, value in call.items() if value is not None and key not in (*ARGUMENT_KEYS, *OTHER_CALL_KEYS)
    ]
    if not candidates and unknown_keys:
        raise UnreadableError(f"a call of {tool!r} has no arguments, and the unknown key {str(unknown_keys[0])[:40]!r}")
    return candidates[0] if candidates else None


def default_call_id(tool: str, index: int) -> str:
    """Return the default id of a tool call without an id."""
    return f"{tool}/{index}"


def normalize_arguments(value: object, tool: str = "a tool") -> str:
    """Return a tool call's arguments in JSON; text stays unchanged.

    >>> normalize_arguments({"a": 1}), normalize_arguments('{"a": 1}'), normalize_arguments(None)
    ('{"a": 1}', '{"a": 1}', '{}')

    Raises:
        UnreadableError: the arguments are not a JSON object, so the call's effect is unknown.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        parsed = json.loads(text, parse_constant=_reject_constant)
        # escape sequences may encode lone surrogates
        decoded = text + json.dumps(parsed, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        parsed, decoded = None, ""
    if not isinstance(parsed, dict) or exceeds_depth(parsed, MAX_DEPTH) or replace_surrogates(decoded) != decoded:
        raise UnreadableError(f"the arguments of a call of {tool!r} are no JSON object: {str(value)[:80]!r}")
    return text


def _reject_constant(constant: str) -> None:
    raise UserError(f"{constant} is no JSON")


def match_tool_results(messages: Sequence[TracedMessage]) -> list[TracedMessage]:
    """Assign a unique id to each tool call, and to each tool result the id of its call.

    A result belongs to the turn before it: to the first call without a result that has the same id. Without ids,
    the same name or no name is enough. A result with an id may also belong to an earlier turn. A result without an
    id goes first to a call without an id. A result without a matching call keeps its id.
    """
    matched, turns = (
        list[TracedMessage](),
        list[dict[str, tuple[ClientToolCall, bool]]](),
    )  # calls without a result, by turn
    for number, message in enumerate(messages):
        if message.role == "assistant" and message.calls:
            explicit_ids = [call.id != default_call_id(call.name, index) for index, call in enumerate(message.calls)]
            calls = [replace(call, id=f"{number}/{index}") for index, call in enumerate(message.calls)]
            turns.append(
                {
                    new_call.id: (call, has_id)
                    for new_call, call, has_id in zip(calls, message.calls, explicit_ids, strict=True)
                }
            )
            message = replace(message, calls=tuple(calls))
        elif message.role == "tool":
            candidates = [
                (id, has_id)
                for id, (call, has_id) in _iter_open_calls(turns, message)
                if _matches_call(message, call, has_id)
            ]
            call_id = min(candidates, key=lambda call: call[1] != bool(message.tool_call_id), default=("", False))[0]
            message = replace(message, tool_call_id=call_id or message.tool_call_id or message.name)
            for turn in turns:
                turn.pop(call_id, None)
        matched.append(message)
    return matched


def _iter_open_calls(
    turns: Sequence[Mapping[str, tuple[ClientToolCall, bool]]], message: TracedMessage
) -> Iterator[tuple[str, tuple[ClientToolCall, bool]]]:
    """Yield possible calls for a tool result, starting with the last turn's."""
    yield from turns[-1].items() if turns else ()
    for turn in reversed(turns[:-1]):
        yield from (item for item in turn.items() if message.tool_call_id and item[1][1])


def _matches_call(message: TracedMessage, call: ClientToolCall, has_id: bool) -> bool:
    """Return True if a tool message may belong to a tool call.

    Args:
        message: the tool message.
        call: the tool call.
        has_id: True if the call has an explicit id.
    """
    if message.tool_call_id and has_id:
        return message.tool_call_id == call.id
    return not message.name or message.name == call.name


def build_chat(messages: Sequence[TracedMessage], agent: str) -> tuple[ChatMessage, ...]:
    """Return a chat from a single agent's view.

    The agent's own turns have the role ``assistant``. Messages of other agents become user messages without tool
    calls, in the format of :func:`marft.agents.prompt_messages.build_messages`.

    Raises:
        UnreadableError: the chat is empty, or a tool result belongs to no earlier call.
    """
    client_messages, other_calls = list[ClientMessage](), set[str]()
    for message in messages:
        is_own = message.name in (agent, "") or agent == DEFAULT_AGENT_NAME
        if message.role == "assistant" and not is_own:
            other_calls |= {call.id for call in message.calls}
            if message.text:
                client_messages.append(ClientMessage("user", format_message(Message(message.name, message.text))))
        elif message.role == "assistant":
            client_messages.append(ClientMessage("assistant", message.text, message.calls))
            other_calls -= {call.id for call in message.calls}
        elif message.role == "tool" and message.tool_call_id not in other_calls:
            if not any(previous.role == "assistant" and previous.calls for previous in client_messages):
                raise UnreadableError("a tool answers, and no turn before has tool_calls: calls in texts are not read")
            client_messages.append(ClientMessage("tool", message.text, (), message.tool_call_id))
        elif message.role != "tool":
            client_messages.append(ClientMessage(message.role, message.text))
    try:
        return build_chat_messages(client_messages, allow_partial=True)
    except RequestError as error:
        raise UnreadableError(error.message) from error


def parse_tools(listed: object) -> tuple[Tool, ...]:
    """Return the tools in OpenAI's ``tools`` or ``functions``; entries without a name are ignored."""
    tools, listed = [], parse_json_text(listed)
    for entry in listed if isinstance(listed, list) else ():
        function = entry.get("function", entry) if isinstance(entry, Mapping) else None
        name = _to_name(function.get("name")) if isinstance(function, Mapping) else ""
        if isinstance(function, Mapping) and name:
            schema = function.get("parameters", function.get("input_schema"))
            parameters = schema if isinstance(schema, Mapping) and not exceeds_depth(schema, MAX_DEPTH) else {}
            description = function.get("description")
            tools.append(
                Tool(name, replace_surrogates(description) if isinstance(description, str) else "", parameters)
            )
    return tuple(tools)


def pair_tool_results(
    calls: Sequence[ClientToolCall], results: Mapping[int, str]
) -> tuple[tuple[ToolCall, ...], tuple[int, ...]]:
    """Return a turn's tool calls with their results, and the positions without a result.

    Args:
        calls: tool calls of the turn.
        results: results by position.
    """
    missing_results = tuple(index for index in range(len(calls)) if index not in results)
    tool_calls = tuple(ToolCall(call.name, call.arguments, results.get(index, "")) for index, call in enumerate(calls))
    return tool_calls, missing_results


def _to_name(value: object) -> str:
    """Convert a name or id to text with up to 256 characters; "" for other types."""
    return replace_surrogates(str(value))[:256] if isinstance(value, str | int) and not isinstance(value, bool) else ""
