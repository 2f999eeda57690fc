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

from marft_serve.traces.spans import Attributes, ImportedSpan
from marft_serve.traces.types import UnreadableError

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
Message = Mapping[str, Any]


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
    output = _parse_json(attributes.get("gen_ai.output.messages"))
    if not isinstance(output, list):
        return None
    system = _parse_json(attributes.get("gen_ai.system_instructions"))
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
        _parse_json(attributes.get("gen_ai.tool.definitions")),
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


def _get_result_text(part: Mapping[str, Any]) -> str:
    """Convert a tool result to text."""
    result = part.get("response", part.get("result", part.get("content")))
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _parse_openinference(span: ImportedSpan) -> ModelCall | None:
    answers = [_convert_message(entry) for entry in unflatten(span.attributes, OUTPUT)]
    if not answers:
        return None
    prompt = [_convert_message(entry) for entry in unflatten(span.attributes, INPUT)]
    tools = [
        _parse_json(entry.get("tool", {}).get("json_schema"))
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
    parts = _parse_json(content) if isinstance(content, str) and content.startswith("[{") else None
    if isinstance(parts, list) and all(isinstance(part, Mapping) and "type" in part for part in parts):
        message["content"] = parts
    message["tool_calls"] = [call for call in _list_entries(message.get("tool_calls")) if isinstance(call, Mapping)]
    return {"role": role, **message}


def _convert_function(entry: object) -> object:
    if not isinstance(entry, Mapping):
        return entry
    return {**entry, "parameters": _parse_json(entry.get("parameters"))}


def _parse_events(span: ImportedSpan) -> ModelCall | None:
    prompt, answers, finish = list[Message](), list[Message](), ""
    for event in span.events:
        if event.name in EVENT_ROLES:
            prompt.append(_convert_event(event.attributes, EVENT_ROLES[event.name]))
        elif event.name == "gen_ai.choice":
            message = _parse_json(event.attributes.get("message"))
            table = message if isinstance(message, Mapping) else event.attributes
            finish = finish or str(event.attributes.get("finish_reason") or "")
            answers.append(_convert_event({**event.attributes, **table}, "assistant"))
    return ModelCall(prompt, answers, None, finish or _get_finish_reason(span.attributes)) if answers else None


def _convert_event(attributes: Attributes, role: str) -> Message:
    calls, content = _parse_json(attributes.get("tool_calls")), attributes.get("content")
    return {
        "role": attributes.get("role") or role,
        "content": content if content is None or isinstance(content, str | list) else json.dumps(content),
        "tool_calls": calls if isinstance(calls, list) else [],
        "tool_call_id": attributes.get("id", attributes.get("tool_call_id")),
        "name": attributes.get("name"),
    }


def unflatten(attributes: Attributes, prefix: str) -> list[Any]:
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


def _list_entries(tree: object) -> list[Any]:
    """Return the entries of a flattened list, in numerical order."""
    if isinstance(tree, list):
        return tree
    numbered = tree.items() if isinstance(tree, Mapping) else ()
    return [value for _, value in sorted(((int(k), v) for k, v in numbered if _is_index(k)), key=lambda item: item[0])]


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 10


def _get_finish_reason(attributes: Attributes) -> str:
    reasons = _parse_json(attributes.get("gen_ai.response.finish_reasons"))
    return str(reasons[0]) if isinstance(reasons, list) and reasons else ""


def _parse_list(value: object) -> list[Any]:
    parsed = _parse_json(value)
    return parsed if isinstance(parsed, list) else []


def _parse_json(value: object) -> Any:
    """Parse JSON text; return different values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
