"""Parsing of exported OpenTelemetry spans, and of the model calls in them.

Spans are in OTLP JSON (``resourceSpans`` per line) or from ``ReadableSpan.to_json()``. Model calls are converted to
OpenAI's message format, by tracing convention:

- ``gen_ai.input.messages`` and ``gen_ai.output.messages``: current OpenTelemetry, on the span or on its event;
- ``gen_ai.user.message``, ``gen_ai.choice``: earlier OpenTelemetry, with one event per message;
- ``gen_ai.prompt.N.…`` and ``gen_ai.completion.N.…``: OpenLLMetry;
- ``llm.input_messages.N.message.…``: OpenInference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from marft.common.texts import parse_json_text
from marft_serve.traces.types import SkipCounter, UnreadableError

MAX_ID_CHARS = 128
Attributes = Mapping[str, object]
MODEL_OPERATIONS = ("chat", "text_completion", "generate_content")  # values of gen_ai.operation.name
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
INPUT, OUTPUT = "llm.input_messages", "llm.output_messages"
PROMPT, COMPLETION = "gen_ai.prompt", "gen_ai.completion"
TRUNCATED_REASONS = ("length", "max_tokens", "MAX_TOKENS")  # finish reasons of truncated answers
Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Event of a span."""

    name: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class ImportedSpan:
    """Imported span. Times are in seconds since 1970, or 0 if unknown.

    Args:
        trace: id of the trace.
        id: id of the span.
        parent: id of the parent span; "" for a root.
        name: name of the span.
        attributes: attributes of the span.
        events: events of the span.
        links: ids of the linked spans.
        start_time: start of the span.
        end_time: end of the span.
        location: file and line number.
        size: approximate size in characters.
    """

    trace: str
    id: str
    parent: str
    name: str
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    links: tuple[str, ...] = ()
    start_time: float = 0.0
    end_time: float = 0.0
    location: str = ""
    size: int = 0


def has_spans(table: Mapping[str, object]) -> bool:
    """Return True if a line contains spans in either format."""
    return "resourceSpans" in table or "resource_spans" in table or isinstance(table.get("context"), Mapping)


def parse_spans(table: Mapping[str, object], location: str, skip_counter: SkipCounter) -> Iterator[ImportedSpan]:
    """Yield a line's spans; skip and count invalid spans."""
    readable = isinstance(table.get("context"), Mapping)
    parse = _parse_readable_span if readable else _parse_otlp_span
    for entry in [table] if readable else list(_iter_spans(table)):
        try:
            yield replace(parse(entry, location), size=len(str(entry)))
        except (UnreadableError, RecursionError) as error:
            skip_counter.skip(
                "span", str(error) if isinstance(error, UnreadableError) else "it is nested too deep", location
            )


def _iter_spans(table: Mapping[str, object]) -> Iterator[object]:
    for resource in _as_list(table.get("resourceSpans", table.get("resource_spans"))):
        for scope in _as_list(_get_first(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")):
            yield from _as_list(_get_first(scope, "spans"))


def _parse_otlp_span(table: object, location: str) -> ImportedSpan:
    return ImportedSpan(
        trace=_parse_id(_get_first(table, "traceId", "trace_id"), "trace id"),
        id=_parse_id(_get_first(table, "spanId", "span_id"), "span id"),
        parent=str(_get_first(table, "parentSpanId", "parent_span_id") or "")[:MAX_ID_CHARS],
        name=str(_get_first(table, "name") or ""),
        attributes=_parse_attributes(_get_first(table, "attributes")),
        events=tuple(
            SpanEvent(str(_get_first(event, "name") or ""), _parse_attributes(_get_first(event, "attributes")))
            for event in _as_list(_get_first(table, "events"))
        ),
        links=tuple(str(_get_first(link, "spanId", "span_id")) for link in _as_list(_get_first(table, "links"))),
        start_time=_parse_timestamp(_get_first(table, "startTimeUnixNano", "start_time_unix_nano")),
        end_time=_parse_timestamp(_get_first(table, "endTimeUnixNano", "end_time_unix_nano")),
        location=location,
    )


def _parse_readable_span(table: Any, location: str) -> ImportedSpan:
    context = table["context"]
    return ImportedSpan(
        trace=_parse_id(context.get("trace_id"), "trace id"),
        id=_parse_id(context.get("span_id"), "span id"),
        parent=str(table.get("parent_id") or "").removeprefix("0x")[:MAX_ID_CHARS],
        name=str(table.get("name") or ""),
        attributes=_as_attributes(table.get("attributes")),
        events=tuple(
            SpanEvent(str(_get_first(event, "name") or ""), _as_attributes(_get_first(event, "attributes")))
            for event in _as_list(table.get("events"))
        ),
        links=tuple(
            str(_get_first(_get_first(link, "context"), "span_id")).removeprefix("0x")
            for link in _as_list(table.get("links"))
        ),
        start_time=_parse_iso_time(table.get("start_time")),
        end_time=_parse_iso_time(table.get("end_time")),
        location=location,
    )


def _parse_id(value: object, label: str) -> str:
    """Return a trace or span id.

    Raises:
        UnreadableError: the id is missing.
    """
    if not isinstance(value, str) or not value.removeprefix("0x").strip("0"):
        raise UnreadableError(f"it has no {label}")
    return value.removeprefix("0x")[:MAX_ID_CHARS]


def _get_first(table: object, *names: str) -> Any:
    """Return a table's first existing field; None without a match."""
    return next((table[name] for name in names if name in table), None) if isinstance(table, Mapping) else None


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _as_attributes(value: object) -> Attributes:
    return {str(key): inner for key, inner in value.items()} if isinstance(value, Mapping) else {}


def _parse_attributes(listed: object) -> Attributes:
    """Return attributes from an OTLP list of keys and typed values, or from a plain table."""
    if isinstance(listed, Mapping):
        return _as_attributes(listed)
    return {
        str(_get_first(entry, "key")): _parse_value(_get_first(entry, "value"))
        for entry in _as_list(listed)
        if _get_first(entry, "key") is not None
    }


def _parse_value(value: object) -> object:
    """Convert a typed OTLP value (``AnyValue``) to Python."""
    if not isinstance(value, Mapping):
        return value
    for kind, inner in value.items():
        if kind in ("arrayValue", "array_value"):
            return [_parse_value(item) for item in _as_list(_get_first(inner, "values"))]
        if kind in ("kvlistValue", "kvlist_value"):
            return _parse_attributes(_get_first(inner, "values"))
        if kind in ("intValue", "int_value"):
            return _parse_int(inner)
        return inner
    return None


def _parse_int(value: object) -> object:
    """Convert an integer from text; OTLP JSON writes 64-bit integers as text."""
    try:
        return int(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _parse_timestamp(value: object) -> float:
    try:
        seconds = float(value) / 1e9 if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _parse_iso_time(text: object) -> float:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Prompt and answer of a model call, in OpenAI's message format.

    Args:
        prompt: messages of the prompt.
        answers: answers, one per choice.
        tools: the offered tools.
        finish: finish reason of the first answer; "" if unknown.
    """

    prompt: Sequence[Message]
    answers: Sequence[Message]
    tools: object = None
    finish: str = ""


def is_model_call(span: ImportedSpan) -> bool:
    """Return True for the span of a model call."""
    attributes = span.attributes
    if attributes.get("openinference.span.kind") == "LLM" or attributes.get("llm.request.type") in (
        "chat",
        "completion",
    ):
        return True
    if attributes.get("gen_ai.operation.name") in MODEL_OPERATIONS:
        return True
    return "gen_ai.operation.name" not in attributes and any(
        key in attributes for key in ("gen_ai.output.messages", f"{COMPLETION}.0.content", f"{COMPLETION}.0.role")
    )


def parse_model_call(span: ImportedSpan) -> ModelCall:
    """Return the prompt and answer in the span of a model call.

    Raises:
        UnreadableError: the content is not recorded, or follows no known convention.
    """
    for convention in (_parse_current, _parse_openinference, _parse_openllmetry, _parse_events):
        call = convention(span)
        if call is not None and call.answers:
            return call
    raise UnreadableError("a call of a model without what it was asked and said: switch on the recording of content")


def _parse_current(span: ImportedSpan) -> ModelCall | None:
    attributes: Attributes = span.attributes
    for event in span.events:
        if event.name == DETAILS_EVENT:
            attributes = {**attributes, **event.attributes}
    output = parse_json_text(attributes.get("gen_ai.output.messages"))
    if not isinstance(output, list):
        return None
    system = parse_json_text(attributes.get("gen_ai.system_instructions"))
    prompt = [
        message for entry in _parse_list(attributes.get("gen_ai.input.messages")) for message in _convert_parts(entry)
    ]
    if system and not any(message.get("role") in ("system", "developer") for message in prompt):
        parts = system if isinstance(system, list) else [{"type": "text", "content": system}]
        prompt = [*_convert_parts({"role": "system", "parts": parts}), *prompt]
    answers = [message for entry in output for message in _convert_parts(entry)]
    finish = output[0].get("finish_reason") if output and isinstance(output[0], Mapping) else ""
    return ModelCall(
        prompt,
        answers,
        parse_json_text(attributes.get("gen_ai.tool.definitions")),
        str(finish or _get_finish_reason(attributes)),
    )


def _convert_parts(message: object) -> Iterator[Message]:
    """Convert a message with parts to OpenAI messages; each tool result becomes a separate message."""
    parts = message.get("parts") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(parts, list):
        yield message if isinstance(message, Mapping) else {"role": None}
        return
    content, calls, thoughts = list[object](), list[object](), list[str]()
    results = list[Message]()
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping):
            content.append(part)
        elif kind == "tool_call":
            call = {"id": part.get("id"), "function": {"name": part.get("name"), "arguments": part.get("arguments")}}
            calls.append(call)
        elif kind == "tool_call_response":
            results.append({"role": "tool", "tool_call_id": part.get("id"), "content": _get_result_text(part)})
        elif kind in ("reasoning", "thinking"):
            thoughts.append(str(part.get("content") or ""))
        else:
            content.append({**part, "type": kind, "text": part.get("content", part.get("text"))})
    if content or calls or thoughts or not results:
        yield {
            "role": message.get("role"),
            "name": message.get("name"),
            "content": content or None,
            "tool_calls": calls,
            "reasoning_content": "\n".join(thoughts),
        }
    yield from results


def _get_result_text(part: Mapping[str, object]) -> str:
    """Convert a tool result to text."""
    result = part.get("response", part.get("result", part.get("content")))
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _parse_openinference(span: ImportedSpan) -> ModelCall | None:
    answers = [_convert_message(entry) for entry in unflatten(span.attributes, OUTPUT)]
    if not answers:
        return None
    prompt = [_convert_message(entry) for entry in unflatten(span.attributes, INPUT)]
    tools = [
        parse_json_text(entry.get("tool", {}).get("json_schema"))
        for entry in unflatten(span.attributes, "llm.tools")
        if isinstance(entry, Mapping) and isinstance(entry.get("tool"), Mapping)
    ]
    return ModelCall(prompt, answers, tools, _get_finish_reason(span.attributes))


def _convert_message(entry: object) -> Message:
    """Convert a flattened OpenInference message."""
    message = entry.get("message") if isinstance(entry, Mapping) else None
    if not isinstance(message, Mapping):
        return {"role": None}
    calls = []
    for item in _list_entries(message.get("tool_calls")):
        call = item.get("tool_call") if isinstance(item, Mapping) else None
        calls.append(call if isinstance(call, Mapping) else {})
    content = message.get("content")
    if content is None and "contents" in message:
        content = [_convert_content_part(item) for item in _list_entries(message["contents"])]
    return {**message, "content": content, "tool_calls": calls}


def _convert_content_part(entry: object) -> object:
    part = entry.get("message_content") if isinstance(entry, Mapping) else None
    return {"type": part.get("type", "text"), "text": part.get("text")} if isinstance(part, Mapping) else entry


def _parse_openllmetry(span: ImportedSpan) -> ModelCall | None:
    answers = [_convert_flat_message(entry, "assistant") for entry in unflatten(span.attributes, COMPLETION)]
    if not answers:
        return None
    prompt = [_convert_flat_message(entry, None) for entry in unflatten(span.attributes, PROMPT)]
    finish = answers[0].get("finish_reason")
    tools = unflatten(span.attributes, "llm.request.functions")
    return ModelCall(
        prompt,
        answers,
        [_convert_function(entry) for entry in tools],
        str(finish or _get_finish_reason(span.attributes)),
    )


def _convert_flat_message(entry: object, role: str | None) -> Message:
    """Convert a flattened OpenLLMetry message, with plain content or JSON parts."""
    message = dict(entry) if isinstance(entry, Mapping) else {}
    content = message.get("content")
    parts = parse_json_text(content) if isinstance(content, str) and content.startswith("[{") else None
    if isinstance(parts, list) and all(isinstance(part, Mapping) and "type" in part for part in parts):
        message["content"] = parts
    message["tool_calls"] = [call for call in _list_entries(message.get("tool_calls")) if isinstance(call, Mapping)]
    return {"role": role, **message}


def _convert_function(entry: object) -> object:
    if not isinstance(entry, Mapping):
        return entry
    return {**entry, "parameters": parse_json_text(entry.get("parameters"))}


def _parse_events(span: ImportedSpan) -> ModelCall | None:
    prompt, answers, finish = list[Message](), list[Message](), ""
    for event in span.events:
        if event.name in EVENT_ROLES:
            prompt.append(_convert_event(event.attributes, EVENT_ROLES[event.name]))
        elif event.name == "gen_ai.choice":
            message = parse_json_text(event.attributes.get("message"))
            table = message if isinstance(message, Mapping) else event.attributes
            finish = finish or str(event.attributes.get("finish_reason") or "")
            answers.append(_convert_event({**event.attributes, **table}, "assistant"))
    return ModelCall(prompt, answers, None, finish or _get_finish_reason(span.attributes)) if answers else None


def _convert_event(attributes: Attributes, role: str) -> Message:
    calls, content = parse_json_text(attributes.get("tool_calls")), attributes.get("content")
    return {
        "role": attributes.get("role") or role,
        "content": content if content is None or isinstance(content, str | list) else json.dumps(content),
        "tool_calls": calls if isinstance(calls, list) else [],
        "tool_call_id": attributes.get("id", attributes.get("tool_call_id")),
        "name": attributes.get("name"),
    }


def unflatten(attributes: Attributes, prefix: str) -> list[object]:
    """Unflatten the attributes ``prefix.0.a.b``, ``prefix.1.…`` to a list.

    >>> unflatten({"p.0.role": "user", "p.1.calls.0.name": "add"}, "p")
    [{'role': 'user'}, {'calls': {'0': {'name': 'add'}}}]
    """
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(f"{prefix}."):
            continue
        node, keys = tree, key[len(prefix) + 1 :].split(".")
        for part in keys[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node.setdefault(keys[-1], value)
    return _list_entries(tree)


def _list_entries(tree: object) -> list[object]:
    """Return the entries of a flattened list, in numerical order."""
    if isinstance(tree, list):
        return tree
    numbered = tree.items() if isinstance(tree, Mapping) else ()
    return [value for _, value in sorted(((int(k), v) for k, v in numbered if _is_index(k)), key=lambda item: item[0])]


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 10


def _get_finish_reason(attributes: Attributes) -> str:
    reasons = parse_json_text(attributes.get("gen_ai.response.finish_reasons"))
    return str(reasons[0]) if isinstance(reasons, list) and reasons else ""


def _parse_list(value: object) -> list[object]:
    parsed = parse_json_text(value)
    return parsed if isinstance(parsed, list) else []
