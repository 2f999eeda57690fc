"""Parsing of model-call spans by tracing convention, converted to OpenAI's message format.

- ``gen_ai.input.messages`` and ``gen_ai.output.messages``: current OpenTelemetry, on the span or on its event;
- ``gen_ai.user.message``, ``gen_ai.choice``: earlier OpenTelemetry, with one event per message;
- ``gen_ai.prompt.N.…`` and ``gen_ai.completion.N.…``: OpenLLMetry;
- ``llm.input_messages.N.message.…``: OpenInference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft_serve.traces.record import UnreadableError
from marft_serve.traces.spans import Attributes, Span

CALLS_OF_MODELS = ("chat", "text_completion", "generate_content")  # values of gen_ai.operation.name
DETAILS = "gen_ai.client.inference.operation.details"
EVENTS = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}  # fmt: skip
INPUT, OUTPUT = "llm.input_messages", "llm.output_messages"
PROMPT, COMPLETION = "gen_ai.prompt", "gen_ai.completion"
CUT = ("length", "max_tokens", "MAX_TOKENS")  # finish reasons of truncated answers
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Prompt and answer of a model call, in OpenAI's message format.

    Args:
        asked: messages of the prompt.
        said: answers, one per choice.
        tools: the offered tools.
        finish: finish reason of the first answer; "" if unknown.
    """

    asked: Sequence[Message]
    said: Sequence[Message]
    tools: object = None
    finish: str = ""


def is_call(span: Span) -> bool:
    """Return True for the span of a model call."""
    attributes = span.attributes
    if attributes.get("openinference.span.kind") == "LLM" or attributes.get("llm.request.type") in (
        "chat",
        "completion",
    ):
        return True
    if attributes.get("gen_ai.operation.name") in CALLS_OF_MODELS:
        return True
    return "gen_ai.operation.name" not in attributes and any(
        key in attributes for key in ("gen_ai.output.messages", f"{COMPLETION}.0.content", f"{COMPLETION}.0.role")
    )


def exchange_of(span: Span) -> Exchange:
    """Return the prompt and answer in the span of a model call.

    Raises:
        UnreadableError: the content is not recorded, or follows no known convention.
    """
    for convention in (_current, _openinference, _openllmetry, _events):
        found = convention(span)
        if found is not None and found.said:
            return found
    raise UnreadableError("a call of a model without what it was asked and said: switch on the recording of content")


def _current(span: Span) -> Exchange | None:
    attributes: Attributes = span.attributes
    for event in span.events:
        if event.name == DETAILS:
            attributes = {**attributes, **event.attributes}
    said = _read(attributes.get("gen_ai.output.messages"))
    if not isinstance(said, list):
        return None
    system = _read(attributes.get("gen_ai.system_instructions"))
    asked = [message for one in _listed(attributes.get("gen_ai.input.messages")) for message in _in_parts(one)]
    if system and not any(message.get("role") in ("system", "developer") for message in asked):
        parts = system if isinstance(system, list) else [{"type": "text", "content": system}]
        asked = [*_in_parts({"role": "system", "parts": parts}), *asked]
    answers = [message for one in said for message in _in_parts(one)]
    finish = said[0].get("finish_reason") if said and isinstance(said[0], Mapping) else ""
    return Exchange(
        asked, answers, _read(attributes.get("gen_ai.tool.definitions")), str(finish or _finish(attributes))
    )


def _in_parts(message: object) -> Iterator[Message]:
    """Convert a message with parts to OpenAI messages; each tool result becomes a separate message."""
    parts = message.get("parts") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(parts, list):
        yield message if isinstance(message, Mapping) else {"role": None}
        return
    content, calls, thoughts = list[object](), list[object](), list[str]()
    answers = list[Message]()
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping):
            content.append(part)
        elif kind == "tool_call":
            call = {"id": part.get("id"), "function": {"name": part.get("name"), "arguments": part.get("arguments")}}
            calls.append(call)
        elif kind == "tool_call_response":
            answers.append({"role": "tool", "tool_call_id": part.get("id"), "content": _said(part)})
        elif kind in ("reasoning", "thinking"):
            thoughts.append(str(part.get("content") or ""))
        else:
            content.append({**part, "type": kind, "text": part.get("content", part.get("text"))})
    if content or calls or thoughts or not answers:
        yield {
            "role": message.get("role"), "name": message.get("name"), "content": content or None, "tool_calls": calls,
            "reasoning_content": "\n".join(thoughts),
        }  # fmt: skip
    yield from answers


def _said(part: Mapping[str, Any]) -> str:
    """Convert a tool result to text."""
    found = part.get("response", part.get("result", part.get("content")))
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _openinference(span: Span) -> Exchange | None:
    said = [_plain_message(one) for one in nested(span.attributes, OUTPUT)]
    if not said:
        return None
    asked = [_plain_message(one) for one in nested(span.attributes, INPUT)]
    tools = [_read(one.get("tool", {}).get("json_schema")) for one in nested(span.attributes, "llm.tools")
             if isinstance(one, Mapping) and isinstance(one.get("tool"), Mapping)]  # fmt: skip
    return Exchange(asked, said, tools, _finish(span.attributes))


def _plain_message(entry: object) -> Message:
    """Convert a flattened OpenInference message."""
    message = entry.get("message") if isinstance(entry, Mapping) else None
    if not isinstance(message, Mapping):
        return {"role": None}
    calls = []
    for one in _entries(message.get("tool_calls")):
        call = one.get("tool_call") if isinstance(one, Mapping) else None
        calls.append(call if isinstance(call, Mapping) else {})
    content = message.get("content")
    if content is None and "contents" in message:
        content = [_content_part(one) for one in _entries(message["contents"])]
    return {**message, "content": content, "tool_calls": calls}


def _content_part(entry: object) -> object:
    part = entry.get("message_content") if isinstance(entry, Mapping) else None
    return {"type": part.get("type", "text"), "text": part.get("text")} if isinstance(part, Mapping) else entry


def _openllmetry(span: Span) -> Exchange | None:
    said = [_flat_message(one, "assistant") for one in nested(span.attributes, COMPLETION)]
    if not said:
        return None
    asked = [_flat_message(one, None) for one in nested(span.attributes, PROMPT)]
    finish = said[0].get("finish_reason")
    tools = nested(span.attributes, "llm.request.functions")
    return Exchange(asked, said, [_function(one) for one in tools], str(finish or _finish(span.attributes)))


def _flat_message(entry: object, role: str | None) -> Message:
    """Convert a flattened OpenLLMetry message, with plain content or JSON parts."""
    message = dict(entry) if isinstance(entry, Mapping) else {}
    content = message.get("content")
    parts = _read(content) if isinstance(content, str) and content.startswith("[{") else None
    if isinstance(parts, list) and all(isinstance(part, Mapping) and "type" in part for part in parts):
        message["content"] = parts
    message["tool_calls"] = [one for one in _entries(message.get("tool_calls")) if isinstance(one, Mapping)]
    return {"role": role, **message}


def _function(entry: object) -> object:
    if not isinstance(entry, Mapping):
        return entry
    return {**entry, "parameters": _read(entry.get("parameters"))}


def _events(span: Span) -> Exchange | None:
    asked, said, finish = list[Message](), list[Message](), ""
    for event in span.events:
        if event.name in EVENTS:
            asked.append(_of_event(event.attributes, EVENTS[event.name]))
        elif event.name == "gen_ai.choice":
            message = _read(event.attributes.get("message"))
            table = message if isinstance(message, Mapping) else event.attributes
            finish = finish or str(event.attributes.get("finish_reason") or "")
            said.append(_of_event({**event.attributes, **table}, "assistant"))
    return Exchange(asked, said, None, finish or _finish(span.attributes)) if said else None


def _of_event(attributes: Attributes, role: str) -> Message:
    calls, content = _read(attributes.get("tool_calls")), attributes.get("content")
    return {
        "role": attributes.get("role") or role,
        "content": content if content is None or isinstance(content, str | list) else json.dumps(content),
        "tool_calls": calls if isinstance(calls, list) else [],
        "tool_call_id": attributes.get("id", attributes.get("tool_call_id")),
        "name": attributes.get("name"),
    }


def nested(attributes: Attributes, prefix: str) -> list[Any]:
    """Unflatten the attributes ``prefix.0.a.b``, ``prefix.1.…`` to a list.

    >>> nested({"p.0.role": "user", "p.1.calls.0.name": "add"}, "p")
    [{'role': 'user'}, {'calls': {'0': {'name': 'add'}}}]
    """
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(f"{prefix}."):
            continue
        place, words = tree, key[len(prefix) + 1 :].split(".")
        for word in words[:-1]:
            if not isinstance(place.get(word), dict):
                place[word] = {}
            place = place[word]
        place.setdefault(words[-1], value)
    return _entries(tree)


def _entries(tree: object) -> list[Any]:
    """Return the entries of a flattened list, in numerical order."""
    if isinstance(tree, list):
        return tree
    numbered = tree.items() if isinstance(tree, Mapping) else ()
    return [value for _, value in sorted(((int(k), v) for k, v in numbered if _is_index(k)), key=lambda one: one[0])]


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 10


def _finish(attributes: Attributes) -> str:
    reasons = _read(attributes.get("gen_ai.response.finish_reasons"))
    return str(reasons[0]) if isinstance(reasons, list) and reasons else ""


def _listed(value: object) -> list[Any]:
    found = _read(value)
    return found if isinstance(found, list) else []


def _read(value: object) -> Any:
    """Parse JSON text; return different values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
