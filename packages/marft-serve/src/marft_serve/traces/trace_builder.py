"""Conversion of spans to episodes: a trace becomes an episode, a model call becomes a turn.

The agent spans around a model call give the name of its agent.

Spans may arrive in any order, with several traces interleaved. For bounded memory, at most ``MAX_OPEN_TRACES`` traces
are open, with ``MAX_SPANS`` spans of ``MAX_TEXT_CHARS`` characters in total. Beyond these limits, the least recently
extended trace is closed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from marft.agents.prompt_messages import ChatMessage
from marft.common.texts import parse_json_text, replace_surrogates
from marft.common.usage import Usage
from marft_serve.gateway.protocol.parsing import ClientToolCall
from marft_serve.traces.conversations import parse_reward, parse_task
from marft_serve.traces.messages import (
    TracedMessage,
    build_chat,
    match_tool_results,
    pair_tool_results,
    parse_message,
    parse_tools,
)
from marft_serve.traces.spans import TRUNCATED_REASONS, ImportedSpan, ModelCall, is_model_call, parse_model_call
from marft_serve.traces.types import (
    DEFAULT_AGENT_NAME,
    MAX_TURNS,
    SkipCounter,
    TracedEpisode,
    TracedTurn,
    UnreadableError,
)

MAX_OPEN_TRACES, MAX_SPANS, MAX_TEXT_CHARS = 1024, 50_000, 2**29
MAX_CLOSED_TRACES = 100_000  # closed traces to remember, to detect late spans
MAX_DEPTH = 200  # maximum depth of spans
AGENT_NAME_KEYS = (  # attributes with the agent's name, on the span of a model call, innermost first
    "gen_ai.agent.name",
    "agent.name",
    "graph.node.name",
    "graph.node.id",
    "traceloop.association.properties.langgraph_node",
    "langgraph.node",
)
CHECKPOINT_NAMESPACE = "langgraph_checkpoint_ns"  # "planner:0a1b…|agent:2c3d…": the nodes of nested graphs


class TraceBuilder:
    """Open traces while a file is parsed."""

    def __init__(self, skip_counter: SkipCounter) -> None:
        self.skip_counter = skip_counter
        self._traces: OrderedDict[str, dict[str, ImportedSpan]] = OrderedDict()  # least recently extended first
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._span_count = self._text_chars = 0

    def add_span(self, span: ImportedSpan) -> Iterator[TracedEpisode]:
        """Add a span; yield the episodes of traces closed by the memory limits."""
        if span.trace in self._closed:
            self.skip_counter.skip("span", "its trace was closed before, as many others were open since", span.location)
            return
        trace_spans = self._traces.setdefault(span.trace, {})
        self._traces.move_to_end(span.trace)
        if span.id in trace_spans:
            self.skip_counter.skip("span", "another one of its trace has the same id", span.location)
            return
        trace_spans[span.id] = span
        self._span_count += 1
        self._text_chars += span.size
        while len(self._traces) > MAX_OPEN_TRACES or self._span_count > MAX_SPANS or self._text_chars > MAX_TEXT_CHARS:
            yield from self._close_oldest()

    def close(self) -> Iterator[TracedEpisode]:
        """Close every open trace; yield the resulting episodes."""
        while self._traces:
            yield from self._close_oldest()

    def _close_oldest(self) -> Iterator[TracedEpisode]:
        name, spans = self._traces.popitem(last=False)
        self._span_count -= len(spans)
        self._text_chars -= sum(span.size for span in spans.values())
        self._closed[name] = None
        if len(self._closed) > MAX_CLOSED_TRACES:
            self._closed.popitem(last=False)
        yield from _build_episode(name, spans, self.skip_counter)


def _build_episode(name: str, spans: Mapping[str, ImportedSpan], skip_counter: SkipCounter) -> Iterator[TracedEpisode]:
    """Yield a trace's episode, or nothing without a readable model call."""
    trace = Trace(spans)
    first = min(spans.values(), key=lambda span: span.start_time)
    calls = list(_parse_calls(trace, skip_counter))
    if not calls:
        skip_counter.skip("trace", "no model is called in it that could be read", first.location)
        return
    answers = trace.tool_results()
    turns = [
        _build_turn(call, trace, _collect_results(call, calls[number + 1 :], answers))
        for number, call in enumerate(calls)
    ]
    root = next((span for span in spans.values() if span.parent not in spans), first)
    attributes = {key: value for span in (first, root) for key, value in span.attributes.items()}
    task = attributes.get("marft.task")
    yield TracedEpisode(
        id=name,
        turns=tuple(_link_turns(turns, trace)),
        task=parse_task(_parse_mapping(task) if isinstance(task, str) and task.startswith("{") else task),
        answer=next((turn.text for turn in reversed(turns) if not turn.calls), ""),
        reward=parse_reward(attributes.get("marft.reward")),
        metadata={k: str(attributes[k])[:1000] for k in ("gen_ai.conversation.id", "session.id") if k in attributes},
        location=first.location,
    )


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace's spans by id."""

    spans: Mapping[str, ImportedSpan]

    def ancestors(self, span: ImportedSpan) -> Iterator[ImportedSpan]:
        """Yield the ancestors of a span, from the nearest; stop at a missing or repeated parent."""
        seen = {span.id}
        while len(seen) <= MAX_DEPTH and (outer := self.spans.get(span.parent)) is not None and outer.id not in seen:
            seen.add(outer.id)
            yield outer
            span = outer

    def agent_names(self, span: ImportedSpan) -> list[str]:
        """Return the agent names for a model call, from innermost to outermost."""
        names = [*_span_names(span)]
        for outer in self.ancestors(span):
            names += _agent_names(outer)
        return list(dict.fromkeys(filter(None, names)))

    def tool_results(self) -> dict[str, list[str]]:
        """Return tool results by call id, in order of the tools' start."""
        results = dict[str, list[str]]()
        for span in sorted(self.spans.values(), key=lambda span: (span.start_time, span.location)):
            result = span.attributes.get("gen_ai.tool.call.result", span.attributes.get("output.value"))
            ids = (span.attributes.get(key) for key in ("gen_ai.tool.call.id", "tool_call.id", "tool.id"))
            call_id = next((id for id in ids if id is not None), None)
            if call_id is not None and result is not None:
                results.setdefault(str(call_id), []).append(_to_text(result))
        return results


@dataclass(frozen=True, slots=True)
class _ParsedCall:
    """Readable model call."""

    span: ImportedSpan
    model_call: ModelCall
    prompt: Sequence[TracedMessage]
    chat: tuple[ChatMessage, ...]
    answer: TracedMessage


def _parse_calls(trace: Trace, skip_counter: SkipCounter) -> Iterator[_ParsedCall]:
    """Yield a trace's readable model calls, ordered by start; unreadable calls count as skipped."""
    calls = sorted(
        (span for span in trace.spans.values() if is_model_call(span)),
        key=lambda span: (span.start_time, span.location),
    )
    count = 0
    for span in calls:
        if any(is_model_call(outer) for outer in trace.ancestors(span)):
            skip_counter.skip("span", "it is within another call of a model, which is read", span.location)
        elif count == MAX_TURNS:
            skip_counter.skip("turn", f"its trace has more than {MAX_TURNS} turns", span.location)
        else:
            try:
                model_call = parse_model_call(span)
                prompt = [parse_message(message) for message in model_call.prompt]
                # without agent names, all assistant messages in a prompt are the agent's own
                prompt_chat = build_chat(match_tool_results(prompt), DEFAULT_AGENT_NAME)
                yield _ParsedCall(span, model_call, prompt, prompt_chat, parse_message(model_call.answers[0]))
                count += 1
            except UnreadableError as error:
                skip_counter.skip("turn", str(error), span.location)


def _collect_results(call: _ParsedCall, later: Sequence[_ParsedCall], spans: Mapping[str, list[str]]) -> dict[int, str]:
    """Return the results for a turn's tool calls, by position.

    Results in the prompt of a later model call take precedence. Otherwise they come from the spans of the tools;
    each of these results is used once.
    """
    tool_calls, results = call.answer.calls, dict[int, str]()
    for later_call in later if tool_calls else ():
        results = {**_find_results(tool_calls, later_call.prompt), **results}
        if len(results) == len(tool_calls):
            break
    for index, tool_call in enumerate(tool_calls):
        span_results = spans.get(tool_call.id) or []
        result = span_results.pop(0) if span_results else None
        if result is not None:
            results.setdefault(index, result)
    return results


def _find_results(calls: Sequence[ClientToolCall], prompt: Sequence[TracedMessage]) -> dict[int, str]:
    """Return the tool results found in a list with messages, by position.

    If the same calls occur several times, the last occurrence counts.
    """
    ids = [(call.id, call.name) for call in calls]
    for number, message in reversed([*enumerate(match_tool_results(prompt))]):
        if prompt[number].role == "assistant" and [(c.id, c.name) for c in prompt[number].calls] == ids:
            indices = {call.id: index for index, call in enumerate(message.calls)}
            after = match_tool_results(prompt)[number + 1 :]
            return {indices[reply.tool_call_id]: reply.text for reply in after if reply.tool_call_id in indices}
    return {}


def _build_turn(call: _ParsedCall, trace: Trace, results: Mapping[int, str]) -> TracedTurn:
    span, attributes = call.span, call.span.attributes
    calls, missing_results = pair_tool_results(call.answer.calls, results)
    models = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    return TracedTurn(
        id=span.id,
        names=tuple(trace.agent_names(span)) or (DEFAULT_AGENT_NAME,),
        messages=call.chat,
        text=call.answer.text,
        reasoning=call.answer.reasoning,
        calls=calls,
        missing_results=missing_results,
        tools=parse_tools(call.model_call.tools),
        model=next((str(attributes[key]) for key in models if key in attributes), ""),
        usage=_parse_usage(attributes),
        start_time=span.start_time,
        end_time=span.end_time,
        complete=call.model_call.finish not in TRUNCATED_REASONS,
        location=span.location,
    )


def _link_turns(turns: Sequence[TracedTurn], trace: Trace) -> Iterator[TracedTurn]:
    """Yield the turns with their parents' ids.

    Parents are the turns named by span links, and the last earlier turn of each agent around this one.
    """
    inside: dict[str, list[TracedTurn]] = {}
    agent_of = dict[str, str]()
    for turn in turns:
        agent_of[turn.id] = ""
        for outer in trace.ancestors(trace.spans[turn.id]):
            inside.setdefault(outer.id, []).append(turn)
            if not agent_of[turn.id] and _agent_names(outer):
                agent_of[turn.id] = outer.id
    turns_by_id = {turn.id: turn for turn in turns}
    for turn in turns:
        span = trace.spans[turn.id]
        parents = list[TracedTurn]()
        for outer in (span, *trace.ancestors(span)):
            for link in outer.links:
                parents += [turns_by_id[link]] if link in turns_by_id else _last_before(inside.get(link, ()), turn)
            if _agent_names(outer) and outer.id != agent_of[turn.id]:
                parents += _last_before(
                    [parent for parent in inside.get(outer.id, ()) if agent_of[parent.id] == outer.id], turn
                )
        yield replace(turn, parents=tuple(dict.fromkeys(parent.id for parent in parents if parent is not turn)))


def _last_before(turns: Sequence[TracedTurn], before: TracedTurn) -> list[TracedTurn]:
    """Return the last turn that ended before another turn started, in a list; empty without a match."""
    return [turn for turn in turns if turn.end_time <= before.start_time][-1:]


def _span_names(span: ImportedSpan) -> Iterator[str]:
    for key in AGENT_NAME_KEYS:
        yield _to_text(span.attributes.get(key, ""))
    metadata = _parse_mapping(span.attributes.get("metadata"))
    yield _to_text(metadata.get("langgraph_node", ""))
    spaces = metadata.get(
        CHECKPOINT_NAMESPACE, span.attributes.get(f"traceloop.association.properties.{CHECKPOINT_NAMESPACE}", "")
    )
    yield from (part.partition(":")[0] for part in reversed(_to_text(spaces).split("|")))


def _agent_names(span: ImportedSpan) -> list[str]:
    """Return the agent names in an agent's span; empty for different spans."""
    attributes = span.attributes
    if attributes.get("gen_ai.operation.name") in ("invoke_agent", "create_agent"):
        return [_to_text(attributes.get("gen_ai.agent.name", "")) or span.name]
    if attributes.get("openinference.span.kind") == "AGENT" or attributes.get("traceloop.span.kind") == "agent":
        return [*filter(None, _span_names(span)), _to_text(attributes.get("traceloop.entity.name", "")) or span.name]
    return [name for name in _span_names(span) if name]


def _parse_usage(attributes: Mapping[str, object]) -> Usage | None:
    counts = [
        next((int(value) for key in keys if isinstance(value := attributes.get(key), int | float)), 0)
        for keys in (
            ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
            ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
        )
    ]
    return Usage(*counts) if any(counts) else None


def _parse_mapping(value: object) -> dict[str, object]:
    """Return a mapping, parsed from JSON if necessary; empty if the value is not a mapping."""
    parsed = parse_json_text(value)
    return parsed if isinstance(parsed, dict) else {}


def _to_text(value: object) -> str:
    return replace_surrogates(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
