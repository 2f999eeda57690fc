"""Conversion of spans to episodes: a trace becomes an episode, a model call becomes a turn.

The agent spans around a model call give the name of its agent.

Spans may arrive in any order, with several traces interleaved. For bounded memory, at most ``MOST_OPEN`` traces are
open, with ``MOST_SPANS`` spans of ``MOST_TEXT`` characters in total. Beyond these limits, the least recently
extended trace is closed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marft.agents.rendering import ChatMessage
from marft.common.texts import storable
from marft.common.usage import Usage
from marft_serve.gateway.protocol.reading import CallSaid
from marft_serve.traces.conventions import CUT, Exchange, exchange_of, is_call
from marft_serve.traces.conversations import reward_of, task_of
from marft_serve.traces.messages import TracedMessage, answered, chat, made, message_of, tools_of
from marft_serve.traces.record import MOST_TURNS, UNNAMED, Tally, TracedEpisode, TracedTurn, UnreadableError
from marft_serve.traces.spans import Span

MOST_OPEN, MOST_SPANS, MOST_TEXT = 1024, 50_000, 2**29
MOST_CLOSED = 100_000  # closed traces to remember, to detect late spans
DEEPEST = 200  # maximum depth of spans
OWN_NAMES = (  # attributes with the agent's name, on the span of a model call, innermost first
    "gen_ai.agent.name", "agent.name", "graph.node.name", "graph.node.id",
    "traceloop.association.properties.langgraph_node", "langgraph.node",
)  # fmt: skip
CHECKPOINTS = "langgraph_checkpoint_ns"  # "planner:0a1b…|agent:2c3d…": the nodes of nested graphs


class Assembly:
    """Open traces while a file is parsed."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._traces: OrderedDict[str, dict[str, Span]] = OrderedDict()  # least recently extended first
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._held = self._text = 0

    def add(self, span: Span) -> Iterator[TracedEpisode]:
        """Add a span; yield the episodes of traces closed by the memory limits."""
        if span.trace in self._closed:
            self.tally.skip("span", "its trace was closed before, as many others were open since", span.place)
            return
        mine = self._traces.setdefault(span.trace, {})
        self._traces.move_to_end(span.trace)
        if span.id in mine:
            self.tally.skip("span", "another one of its trace has the same id", span.place)
            return
        mine[span.id] = span
        self._held += 1
        self._text += span.size
        while len(self._traces) > MOST_OPEN or self._held > MOST_SPANS or self._text > MOST_TEXT:
            yield from self._close_one()

    def close(self) -> Iterator[TracedEpisode]:
        """Close every open trace; yield the resulting episodes."""
        while self._traces:
            yield from self._close_one()

    def _close_one(self) -> Iterator[TracedEpisode]:
        name, spans = self._traces.popitem(last=False)
        self._held -= len(spans)
        self._text -= sum(span.size for span in spans.values())
        self._closed[name] = None
        if len(self._closed) > MOST_CLOSED:
            self._closed.popitem(last=False)
        yield from _episode(name, spans, self.tally)


def _episode(name: str, spans: Mapping[str, Span], tally: Tally) -> Iterator[TracedEpisode]:
    """Yield a trace's episode, or nothing without a readable model call."""
    trace = Trace(spans)
    first = min(spans.values(), key=lambda span: span.started)
    heard = list(_heard(trace, tally))
    if not heard:
        tally.skip("trace", "no model is called in it that could be read", first.place)
        return
    answers = trace.answers()
    turns = [_turn(one, trace, _answers(one, heard[number + 1 :], answers)) for number, one in enumerate(heard)]
    root = next((span for span in spans.values() if span.parent not in spans), first)
    told = {key: value for span in (first, root) for key, value in span.attributes.items()}
    task = told.get("marft.task")
    yield TracedEpisode(
        id=name,
        turns=tuple(_linked(turns, trace)),
        task=task_of(_table(task) if isinstance(task, str) and task.startswith("{") else task),
        answer=next((turn.text for turn in reversed(turns) if not turn.calls), ""),
        reward=reward_of(told.get("marft.reward")),
        metadata={k: str(told[k])[:1000] for k in ("gen_ai.conversation.id", "session.id") if k in told},
        place=first.place,
    )


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace's spans by id."""

    spans: Mapping[str, Span]

    def around(self, span: Span) -> Iterator[Span]:
        """Yield the ancestors of a span, from the nearest; stop at a missing or repeated parent."""
        met = {span.id}
        while len(met) <= DEEPEST and (outer := self.spans.get(span.parent)) is not None and outer.id not in met:
            met.add(outer.id)
            yield outer
            span = outer

    def names(self, span: Span) -> list[str]:
        """Return the agent names for a model call, from innermost to outermost."""
        found = [*_own_names(span)]
        for outer in self.around(span):
            found += _agent_names(outer)
        return list(dict.fromkeys(filter(None, found)))

    def answers(self) -> dict[str, list[str]]:
        """Return tool results by call id, in order of the tools' start."""
        answers = dict[str, list[str]]()
        for span in sorted(self.spans.values(), key=lambda span: (span.started, span.place)):
            result = span.attributes.get("gen_ai.tool.call.result", span.attributes.get("output.value"))
            ids = (span.attributes.get(key) for key in ("gen_ai.tool.call.id", "tool_call.id", "tool.id"))
            known = next((id for id in ids if id is not None), None)
            if known is not None and result is not None:
                answers.setdefault(str(known), []).append(_text(result))
        return answers


@dataclass(frozen=True, slots=True)
class _Heard:
    """Readable model call."""

    span: Span
    exchange: Exchange
    asked: Sequence[TracedMessage]
    chat: tuple[ChatMessage, ...]
    said: TracedMessage


def _heard(trace: Trace, tally: Tally) -> Iterator[_Heard]:
    """Yield a trace's readable model calls, ordered by start; unreadable calls count as skipped."""
    calls = sorted(
        (span for span in trace.spans.values() if is_call(span)), key=lambda span: (span.started, span.place)
    )
    count = 0
    for span in calls:
        if any(is_call(outer) for outer in trace.around(span)):
            tally.skip("span", "it is within another call of a model, which is read", span.place)
        elif count == MOST_TURNS:
            tally.skip("turn", f"its trace has more than {MOST_TURNS} turns", span.place)
        else:
            try:
                exchange = exchange_of(span)
                asked = [message_of(one) for one in exchange.asked]
                # without agent names, all assistant messages in a prompt are the agent's own
                shown = chat(answered(asked), UNNAMED)
                yield _Heard(span, exchange, asked, shown, message_of(exchange.said[0]))
                count += 1
            except UnreadableError as error:
                tally.skip("turn", str(error), span.place)


def _answers(one: _Heard, later: Sequence[_Heard], spans: Mapping[str, list[str]]) -> dict[int, str]:
    """Return the results for a turn's tool calls, by position.

    Results in the prompt of a later model call take precedence. Otherwise they come from the spans of the tools;
    each of these results is used once.
    """
    calls, answers = one.said.calls, dict[int, str]()
    for other in later if calls else ():
        answers = {**_shown(calls, other.asked), **answers}
        if len(answers) == len(calls):
            break
    for place, call in enumerate(calls):
        of_spans = spans.get(call.id) or []
        answer = of_spans.pop(0) if of_spans else None
        if answer is not None:
            answers.setdefault(place, answer)
    return answers


def _shown(calls: Sequence[CallSaid], asked: Sequence[TracedMessage]) -> dict[int, str]:
    """Return the tool results found in a list with messages, by position.

    If the same calls occur several times, the last occurrence counts.
    """
    ids = [(call.id, call.name) for call in calls]
    for number, told in reversed([*enumerate(answered(asked))]):
        if asked[number].role == "assistant" and [(c.id, c.name) for c in asked[number].calls] == ids:
            places = {call.id: place for place, call in enumerate(told.calls)}
            after = answered(asked)[number + 1 :]
            return {places[message.answers]: message.text for message in after if message.answers in places}
    return {}


def _turn(heard: _Heard, trace: Trace, answers: Mapping[int, str]) -> TracedTurn:
    span, attributes = heard.span, heard.span.attributes
    calls, unanswered = made(heard.said.calls, answers)
    models = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    return TracedTurn(
        id=span.id,
        names=tuple(trace.names(span)) or (UNNAMED,),
        messages=heard.chat,
        text=heard.said.text,
        thought=heard.said.thought,
        calls=calls,
        unanswered=unanswered,
        tools=tools_of(heard.exchange.tools),
        model=next((str(attributes[key]) for key in models if key in attributes), ""),
        usage=_usage(attributes),
        started=span.started,
        ended=span.ended,
        whole=heard.exchange.finish not in CUT,
        place=span.place,
    )


def _linked(turns: Sequence[TracedTurn], trace: Trace) -> Iterator[TracedTurn]:
    """Yield the turns with their parents' ids.

    Parents are the turns named by span links, and the last earlier turn of each agent around this one.
    """
    inside: dict[str, list[TracedTurn]] = {}
    agent_of = dict[str, str]()
    for turn in turns:
        agent_of[turn.id] = ""
        for outer in trace.around(trace.spans[turn.id]):
            inside.setdefault(outer.id, []).append(turn)
            if not agent_of[turn.id] and _agent_names(outer):
                agent_of[turn.id] = outer.id
    known = {turn.id: turn for turn in turns}
    for turn in turns:
        span = trace.spans[turn.id]
        found = list[TracedTurn]()
        for outer in (span, *trace.around(span)):
            for link in outer.links:
                found += [known[link]] if link in known else _last(inside.get(link, ()), turn)
            if _agent_names(outer) and outer.id != agent_of[turn.id]:
                found += _last([one for one in inside.get(outer.id, ()) if agent_of[one.id] == outer.id], turn)
        yield replace(turn, parents=tuple(dict.fromkeys(one.id for one in found if one is not turn)))


def _last(turns: Sequence[TracedTurn], before: TracedTurn) -> list[TracedTurn]:
    """Return the last turn that ended before another turn started, in a list; empty without a match."""
    return [turn for turn in turns if turn.ended <= before.started][-1:]


def _own_names(span: Span) -> Iterator[str]:
    for key in OWN_NAMES:
        yield _text(span.attributes.get(key, ""))
    metadata = _table(span.attributes.get("metadata"))
    yield _text(metadata.get("langgraph_node", ""))
    spaces = metadata.get(CHECKPOINTS, span.attributes.get(f"traceloop.association.properties.{CHECKPOINTS}", ""))
    yield from (part.partition(":")[0] for part in reversed(_text(spaces).split("|")))


def _agent_names(span: Span) -> list[str]:
    """Return the agent names in an agent's span; empty for different spans."""
    attributes = span.attributes
    if attributes.get("gen_ai.operation.name") in ("invoke_agent", "create_agent"):
        return [_text(attributes.get("gen_ai.agent.name", "")) or span.name]
    if attributes.get("openinference.span.kind") == "AGENT" or attributes.get("traceloop.span.kind") == "agent":
        return [*filter(None, _own_names(span)), _text(attributes.get("traceloop.entity.name", "")) or span.name]
    return [name for name in _own_names(span) if name]


def _usage(attributes: Mapping[str, Any]) -> Usage | None:
    counts = [
        next((int(attributes[key]) for key in keys if isinstance(attributes.get(key), int | float)), 0)
        for keys in (
            ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
            ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
        )
    ]
    return Usage(*counts) if any(counts) else None


def _table(value: object) -> dict[str, Any]:
    """Return a mapping, parsed from JSON if necessary; empty if the value is not a mapping."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
