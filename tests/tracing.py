"""Conversations as traces: written in every format that is read, from the documented conventions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from marft.common.reasoning import DELIMITER_PAIRS
from marft_serve.traces.reader import read_traces
from marft_serve.traces.types import SkipCounter, TracedEpisode

Message = dict[str, Any]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
BEGAN = 1_700_000_000


@dataclass(frozen=True)
class Talk:
    """What one agent is asked and says, in OpenAI's words; every assistant's message is a turn."""

    agent: str
    messages: list[Message]

    def turns(self) -> Iterator[tuple[list[Message], Message]]:
        for number, message in enumerate(self.messages):
            if message["role"] == "assistant":
                yield self.messages[:number], message


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
MARKS = [mark.casefold() for family in DELIMITER_PAIRS for mark in family]
WORDS = TEXT.filter(lambda text: not any(mark in text.casefold() for mark in MARKS))
ARGUMENTS = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers() | TEXT | st.booleans(), max_size=3)


@st.composite
def talks(draw: st.DrawFn, agent: str = "planner") -> Talk:
    """A conversation of some turns, with calls of tools, empty texts, thoughts and any characters."""
    messages: list[Message] = [{"role": "system", "content": draw(WORDS)}] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(WORDS)})
        calls = [
            {"id": f"c{turn}.{n}", "type": "function",
             "function": {"name": draw(st.sampled_from(["add", "look_up"])), "arguments": json.dumps(draw(ARGUMENTS))}}
            for n in range(draw(st.integers(0, 2)))
        ]  # fmt: skip
        if calls:
            messages.append({"role": "assistant", "content": draw(WORDS), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(WORDS)} for call in calls]
        messages.append({"role": "assistant", "content": draw(WORDS)})
        if draw(st.booleans()):
            messages[-1]["reasoning_content"] = draw(st.text("xyz ", min_size=1, max_size=9).filter(str.strip)).strip()
    return Talk(agent, messages)


def conversation(talk: Talk) -> list[dict[str, Any]]:
    """OpenAI's format, a line."""
    return [{"messages": talk.messages, "tools": [TOOL], "agent": talk.agent}]


def parts(message: Message) -> dict[str, Any]:
    """A message in parts, as ``gen_ai.input.messages`` has it."""
    if message["role"] == "tool":
        answer = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": "tool", "parts": [answer]}
    found: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        found.append({"type": "reasoning", "content": message["reasoning_content"]})
    found.append({"type": "text", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        found.append({"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": arguments})
    return {"role": message["role"], "parts": found}


def current(asked: Sequence[Message], said: Message) -> tuple[dict[str, Any], list[Any]]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps([parts(message) for message in asked]),
        "gen_ai.output.messages": json.dumps([{**parts(said), "finish_reason": "stop"}]),
        "gen_ai.tool.definitions": json.dumps([TOOL]),
    }, []


def on_event(asked: Sequence[Message], said: Message) -> tuple[dict[str, Any], list[Any]]:
    attributes, _ = current(asked, said)
    operation = {"gen_ai.operation.name": attributes.pop("gen_ai.operation.name")}
    return operation, [("gen_ai.client.inference.operation.details", attributes)]


def events(asked: Sequence[Message], said: Message) -> tuple[dict[str, Any], list[Any]]:
    """OpenTelemetry's earlier events, which had no words for thoughts and tools."""
    told = []
    for message in asked:
        attributes = {"content": message["content"]}
        if message.get("tool_calls"):
            attributes["tool_calls"] = json.dumps(message["tool_calls"])
        if message["role"] == "tool":
            attributes["id"] = message["tool_call_id"]
        told.append((f"gen_ai.{message['role']}.message", attributes))
    choice = {key: value for key, value in said.items() if key != "reasoning_content"}
    told.append(("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": json.dumps(choice)}))
    return {"gen_ai.operation.name": "chat"}, told


def openllmetry(asked: Sequence[Message], said: Message) -> tuple[dict[str, Any], list[Any]]:
    flat: dict[str, Any] = {"llm.request.type": "chat"}
    for prefix, messages in (("gen_ai.prompt", asked), ("gen_ai.completion", [said])):
        for number, message in enumerate(messages):
            at = f"{prefix}.{number}"
            flat |= {f"{at}.role": message["role"], f"{at}.content": message["content"]}
            if "reasoning_content" in message:
                flat[f"{at}.reasoning"] = message["reasoning_content"]
            if "tool_call_id" in message:
                flat[f"{at}.tool_call_id"] = message["tool_call_id"]
            for place, call in enumerate(message.get("tool_calls", ())):
                flat |= {f"{at}.tool_calls.{place}.id": call["id"]}
                flat |= {f"{at}.tool_calls.{place}.{key}": value for key, value in call["function"].items()}
    function = TOOL["function"]
    flat["llm.request.functions.0.name"] = function["name"]  # type: ignore[index]
    flat["llm.request.functions.0.parameters"] = json.dumps(function["parameters"])  # type: ignore[index]
    return flat, []


def openinference(asked: Sequence[Message], said: Message) -> tuple[dict[str, Any], list[Any]]:
    flat: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.tools.0.tool.json_schema": json.dumps(TOOL)}
    for prefix, messages in (("llm.input_messages", asked), ("llm.output_messages", [said])):
        for number, message in enumerate(messages):
            at = f"{prefix}.{number}.message"
            flat[f"{at}.role"] = message["role"]
            if number % 2:
                flat[f"{at}.contents.0.message_content.type"] = "text"
                flat[f"{at}.contents.0.message_content.text"] = message["content"]
            else:
                flat[f"{at}.content"] = message["content"]
            if "reasoning_content" in message:
                flat[f"{at}.reasoning_content"] = message["reasoning_content"]
            if "tool_call_id" in message:
                flat[f"{at}.tool_call_id"] = message["tool_call_id"]
            for place, call in enumerate(message.get("tool_calls", ())):
                call_at = f"{at}.tool_calls.{place}.tool_call"
                flat |= {f"{call_at}.id": call["id"], f"{call_at}.function.name": call["function"]["name"]}
                flat[f"{call_at}.function.arguments"] = call["function"]["arguments"]
    return flat, []


Convention = Callable[[Sequence[Message], Message], tuple[dict[str, Any], list[Any]]]
CONVENTIONS: tuple[Convention, ...] = (current, on_event, events, openllmetry, openinference)


def span(number: int, name: str, attributes: Mapping[str, Any], parent: int = 0, **more: Any) -> dict[str, Any]:
    """A span in words of our own, which :func:`otlp` and :func:`check_readable` write as exporters do."""
    start = more.pop("start", float(number))
    return {"id": number, "name": name, "attributes": dict(attributes), "parent": parent, "events": [], "links": [],
            "trace": 1, "start": start, "end": start + 0.5, **more}  # fmt: skip


def spans_of(talk: Talk, convention: Convention) -> list[dict[str, Any]]:
    """A trace: the program, its agent's span, and in that a span a turn."""
    found = [span(1, "program", {}), span(2, "invoke_agent", agent_attributes(talk.agent), 1)]
    for number, (asked, said) in enumerate(talk.turns(), 3):
        attributes, told = convention(asked, said)
        found.append(span(number, "chat a-model", attributes, 2, events=told))
    return found[::-1]  # what is inside ends, and so is exported, first


def agent_attributes(name: str) -> dict[str, Any]:
    return {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}


def value(found: Any) -> dict[str, Any]:
    """A value of OTLP."""
    if isinstance(found, bool):
        return {"boolValue": found}
    if isinstance(found, int):
        return {"intValue": str(found)}
    if isinstance(found, float):
        return {"doubleValue": found}
    if isinstance(found, list):
        return {"arrayValue": {"values": [value(one) for one in found]}}
    return {"stringValue": found}


def pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(found)} for key, found in attributes.items()]


def otlp(spans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As a file exporter writes them: one object a batch."""
    written = [
        {
            "traceId": f"{one['trace']:032x}", "spanId": f"{one['id']:016x}",
            "parentSpanId": f"{one['parent']:016x}" if one["parent"] else "", "name": one["name"], "kind": 1,
            "startTimeUnixNano": str(int((BEGAN + one["start"]) * 1e9)),
            "endTimeUnixNano": str(int((BEGAN + one["end"]) * 1e9)),
            "attributes": pairs(one["attributes"]),
            "events": [{"name": name, "attributes": pairs(attributes)} for name, attributes in one["events"]],
            "links": [{"traceId": f"{one['trace']:032x}", "spanId": f"{link:016x}"} for link in one["links"]],
        }
        for one in spans
    ]  # fmt: skip
    half = (len(written) + 1) // 2
    return [{"resourceSpans": [{"scopeSpans": [{"spans": some}]}]} for some in (written[:half], written[half:]) if some]


def readable(spans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As ``ReadableSpan.to_json(indent=None)`` has them."""
    return [
        {
            "name": one["name"],
            "context": {"trace_id": f"0x{one['trace']:032x}", "span_id": f"0x{one['id']:016x}", "trace_state": "[]"},
            "kind": "SpanKind.INTERNAL", "parent_id": f"0x{one['parent']:016x}" if one["parent"] else None,
            "start_time": moment(one["start"]), "end_time": moment(one["end"]),
            "status": {"status_code": "UNSET"}, "attributes": one["attributes"],
            "events": [{"name": name, "attributes": attributes} for name, attributes in one["events"]],
            "links": [{"context": {"span_id": f"0x{link:016x}"}} for link in one["links"]], "resource": {},
        }
        for one in spans
    ]  # fmt: skip


def moment(seconds: float) -> str:
    return f"2026-11-22T10:{int(seconds) // 60:02d}:{seconds % 60:09.6f}Z"


EXPORTS = (otlp, readable)


def write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def read(path: Path) -> tuple[list[TracedEpisode], SkipCounter]:
    tally = SkipCounter()
    return list(read_traces([path], tally)), tally
