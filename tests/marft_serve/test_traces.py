"""Traces of every format are read for what they say, and for nothing else; what means nothing is counted."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.prompt_messages import parse_arguments
from marft.common.types import Task
from marft.common.usage import Usage
from marft_serve.traces import reader, trace_builder
from marft_serve.traces.conversations import parse_reward
from marft_serve.traces.reader import read_traces
from marft_serve.traces.spans import parse_spans as spans_in
from marft_serve.traces.types import MAX_TURNS, SkipCounter, TracedTurn
from tests.nights import some
from tests.tracing import (
    CONVENTIONS,
    EXPORTS,
    Convention,
    Talk,
    agent_attributes,
    conversation,
    current,
    events,
    openinference,
    otlp,
    read,
    readable,
    span,
    spans_of,
    talks,
    write,
)

USER = {"role": "user", "content": "1 + 1 ="}
SAID = {"role": "assistant", "content": "2"}


def shown(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: calls are called by their places."""
    found, places = [], dict[str, tuple[str, str]]()
    for message in messages:
        if message["role"] == "tool":
            place, name = places[message["tool_call_id"]]
            found.append({"role": "tool", "name": name, "tool_call_id": place, "content": message["content"]})
            continue
        plain: dict[str, Any] = {"role": message["role"], "content": message["content"]}
        calls = message.get("tool_calls", [])
        places = {call["id"]: (f"call{n:05d}", call["function"]["name"]) for n, call in enumerate(calls)}
        if calls:
            plain["tool_calls"] = [
                {"type": "function", "id": places[call["id"]][0],
                 "function": {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}}
                for call in calls
            ]  # fmt: skip
        found.append(plain)
    return found


def check(turns: tuple[TracedTurn, ...], talk: Talk, thoughts: bool = True) -> None:
    answers = {m["tool_call_id"]: m["content"] for m in talk.messages if m["role"] == "tool"}
    expected = list(talk.turns())
    assert len(turns) == len(expected)
    for number, (turn, (asked, said)) in enumerate(zip(turns, expected, strict=True)):
        assert list(turn.messages) == shown(asked)
        assert (turn.text, turn.agent) == (said["content"], talk.agent)
        assert turn.reasoning == (said.get("reasoning_content", "") if thoughts else "")
        calls = said.get("tool_calls", [])
        assert [call.name for call in turn.calls] == [call["function"]["name"] for call in calls]
        assert [parse_arguments(call.arguments) for call in turn.calls] == [
            json.loads(call["function"]["arguments"]) for call in calls
        ]
        if number + 1 < len(expected):  # the last turn's calls may never have been answered
            assert [call.output for call in turn.calls] == [answers[call["id"]] for call in calls] or not thoughts


class TestRoundTrips:
    @settings(max_examples=40)
    @given(talk=talks())
    def test_a_conversation_is_read_as_it_was_written(
        self, talk: Talk, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = write(tmp_path_factory.getbasetemp() / "talk.jsonl", conversation(talk))
        (episode,), tally = read(path)
        check(episode.turns, talk)
        assert not tally.skipped
        assert [tool.name for tool in episode.turns[0].tools] == ["add"]

    @pytest.mark.parametrize("export", EXPORTS, ids=lambda f: f.__name__)
    @pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda f: f.__name__)
    @settings(max_examples=20)
    @given(talk=talks())
    def test_spans_say_the_same_in_every_convention_and_export(
        self, talk: Talk, convention: Convention, export: Any, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = write(tmp_path_factory.getbasetemp() / "spans.jsonl", export(spans_of(talk, convention)))
        (episode,), tally = read(path)
        check(episode.turns, talk, thoughts=convention is not events)
        assert not tally.skipped
        if convention is not events:
            assert [tool.name for tool in episode.turns[0].tools] == ["add"]

    @settings(max_examples=20)
    @given(seed=st.integers(0, 2**32))
    def test_spans_may_come_in_any_order_those_of_many_traces_mixed(
        self, seed: int, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        told = []
        for trace in (1, 2, 3):
            talk = Talk(f"agent{trace}", [USER, {"role": "assistant", "content": f"answer {trace}"}])
            told += [{**one, "trace": trace} for one in spans_of(talk, current)]
        random.Random(seed).shuffle(told)
        found, _ = read(write(tmp_path_factory.getbasetemp() / "mixed.jsonl", readable(told)))
        assert sorted((e.turns[0].agent, e.answer) for e in found) == [(f"agent{n}", f"answer {n}") for n in (1, 2, 3)]


class TestConversations:
    def test_agents_are_told_apart_by_name_and_read_each_other_as_messages(self, tmp_path: Path) -> None:
        messages = [USER, {**SAID, "name": "planner", "content": "Add."}, {**SAID, "name": "solver"}]
        line = {"messages": messages, "task": "sum/1", "reward": 0.5, "metadata": {"run": 7}}
        (episode,), _ = read(write(tmp_path / "t.jsonl", [line]))
        planner, solver = episode.turns
        assert (planner.agent, solver.agent, episode.task, episode.reward) == ("planner", "solver", "sum/1", 0.5)
        assert list(solver.messages) == [USER, {"role": "user", "content": "Message from planner:\nAdd."}]
        assert dict(episode.metadata) == {"run": "7"}

    def test_what_others_called_and_were_answered_is_theirs(self, tmp_path: Path) -> None:
        call = {"id": "a", "function": {"name": "add", "arguments": "{}"}}
        messages = [
            USER, {"role": "assistant", "name": "planner", "content": "Let me see.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "2"}, {**SAID, "name": "solver"},
        ]  # fmt: skip
        (episode,), tally = read(write(tmp_path / "t.jsonl", [{"messages": messages}]))
        assert [message["role"] for message in episode.turns[1].messages] == ["user", "user"]
        assert episode.turns[0].calls[0].output == "2"
        assert not tally.skipped

    def test_lines_of_one_episode_are_one(self, tmp_path: Path) -> None:
        rows = [
            {"messages": [USER, SAID], "agent": "planner", "episode": "e1", "task": "sum/1"},
            {"messages": [USER, {**SAID, "content": "3"}], "agent": "solver", "episode": "e1", "reward": 1},
            {"messages": [USER, SAID], "agent": "planner", "episode": "e2"},
            {"messages": [USER, SAID], "agent": "planner"},
            {"messages": [USER, SAID], "agent": "planner"},
        ]
        found, _ = read(write(tmp_path / "t.jsonl", rows))
        assert [[turn.agent for turn in e.turns] for e in found] == [["planner", "solver"], *[["planner"]] * 3]
        assert (found[0].id, found[0].task, found[0].answer, found[0].reward) == ("e1", "sum/1", "3", 1.0)

    def test_old_functions_parts_and_inline_thoughts_are_read(self, tmp_path: Path) -> None:
        messages = [
            {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "input_text", "text": "brief."}]},
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}},
            {"role": "function", "name": "add", "content": "2"},
            {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nIt is 2."},
        ]  # fmt: skip
        functions = [{"name": "add", "parameters": {"type": "object"}}]
        (episode,), tally = read(write(tmp_path / "t.jsonl", [{"messages": messages, "functions": functions}]))
        called, said = episode.turns
        assert called.messages[0] == {"role": "system", "content": "Be brief."}
        assert (called.calls[0].name, called.calls[0].output, called.tools[0].name) == ("add", "2", "add")
        assert (said.reasoning, said.text) == ("Hm.", "It is 2.")
        assert not tally.skipped

    def test_a_task_may_be_given_whole_and_weights_are_kept(self, tmp_path: Path) -> None:
        line = {"messages": [USER, {**SAID, "weight": 0}, USER, {**SAID, "weight": 1}],
                "task": {"id": "x", "prompt": "1 + 1 =", "data": {"answer": "2"}}}  # fmt: skip
        (episode,), _ = read(write(tmp_path / "t.jsonl", [line]))
        assert episode.task == Task("x", "1 + 1 =", {"answer": "2"})
        assert [turn.weight for turn in episode.turns] == [0.0, 1.0]

    @pytest.mark.parametrize(("value", "expected"), [(1, 1.0), ("0.5", 0.5), (None, None), ({}, None), ("good", None)])
    def test_a_reward_is_a_number(self, value: object, expected: float | None) -> None:
        assert parse_reward(value) == expected


class TestSpans:
    def test_the_agent_is_who_the_span_says_else_who_is_around_it(self, tmp_path: Path) -> None:
        attributes, _ = openinference([USER], SAID)
        node = {"metadata": json.dumps({"langgraph_node": "agent", "langgraph_checkpoint_ns": "planner:1|agent:2"})}
        told = [
            span(1, "supervisor", {"openinference.span.kind": "AGENT"}),
            span(2, "a", {**attributes, **node}, 1),
            span(3, "b", {**attributes, "traceloop.association.properties.langgraph_node": "solver"}, 1),
            span(4, "c", attributes, 1),
            span(5, "d", attributes, 99),
        ]
        (episode,), _ = read(write(tmp_path / "t.jsonl", readable(told)))
        assert [turn.names for turn in episode.turns] == [
            ("agent", "planner", "supervisor"), ("solver", "supervisor"), ("supervisor",), ("assistant",),
        ]  # fmt: skip

    def test_links_and_agents_within_agents_are_what_a_turn_depends_on(self, tmp_path: Path) -> None:
        attributes, _ = current([USER], SAID)
        told = [
            span(1, "x", agent_attributes("boss"), start=0.0), span(2, "chat", attributes, 1, start=1.0),
            span(3, "x", agent_attributes("worker"), 1, start=2.0), span(4, "chat", attributes, 3, start=3.0),
            span(5, "x", agent_attributes("judge"), 0, start=5.0, links=[3]), span(6, "chat", attributes, 5, start=6.0),
        ]  # fmt: skip
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        ids = {turn.agent: turn.id for turn in episode.turns}
        assert {turn.agent: turn.parents for turn in episode.turns} == {
            "boss": (), "worker": (ids["boss"],), "judge": (ids["worker"],),
        }  # fmt: skip

    def test_answers_of_tools_come_from_their_spans(self, tmp_path: Path) -> None:
        call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        attributes, _ = current([USER], {"role": "assistant", "content": "", "tool_calls": [call]})
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "a", "gen_ai.tool.call.result": "7"}
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp([span(1, "chat", attributes), span(2, "add", tool)])))
        assert episode.turns[0].calls[0].output == "7"

    def test_a_call_of_a_model_within_another_is_the_same_call(self, tmp_path: Path) -> None:
        attributes, _ = current([USER], SAID)
        (episode,), tally = read(
            write(tmp_path / "t.jsonl", otlp([span(1, "ChatOpenAI", attributes), span(2, "openai", attributes, 1)]))
        )
        assert len(episode.turns) == 1
        (left_out,) = tally.format_lines()
        assert left_out.startswith("1 × span: it is within another call of a model, which is read  (t.jsonl:")

    def test_usage_model_limits_task_and_reward_are_kept(self, tmp_path: Path) -> None:
        attributes, _ = current([USER], SAID)
        attributes |= {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3, "gen_ai.request.model": "m"}
        attributes["gen_ai.output.messages"] = attributes["gen_ai.output.messages"].replace('"stop"', '"length"')
        root = {"marft.task": "sum/1", "marft.reward": 0.25, "session.id": "s"}
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp([span(1, "root", root), span(2, "chat", attributes, 1)])))
        (turn,) = episode.turns
        assert (turn.usage, turn.model, turn.complete) == (Usage(12, 3), "m", False)
        assert (episode.task, episode.reward, dict(episode.metadata)) == ("sum/1", 0.25, {"session.id": "s"})

    def test_system_instructions_begin_the_chat(self, tmp_path: Path) -> None:
        attributes, _ = current([USER], SAID)
        attributes["gen_ai.system_instructions"] = json.dumps([{"type": "text", "content": "Be brief."}])
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp([span(1, "chat", attributes)])))
        assert list(episode.turns[0].messages) == [{"role": "system", "content": "Be brief."}, USER]


class TestHostileFiles:
    def test_what_is_damaged_is_counted_by_reason_and_line_and_the_rest_is_read(self, tmp_path: Path) -> None:
        good = json.dumps({"messages": [USER, SAID]})
        picture = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
        rows = [
            b"\xef\xbb\xbf" + good.encode(), b"", b"[1, 2]", b"\xff\xfe{}", b"{" * 100_000, b'{"a": 1}',
            json.dumps({"messages": [USER, {"role": "wizard", "content": "x"}]}).encode(),
            json.dumps({"messages": [picture, SAID]}).encode(),
            json.dumps({"messages": [USER]}).encode(),
            json.dumps({"messages": [USER, {"role": "tool", "tool_call_id": "z", "content": "1"}, SAID]}).encode(),
            json.dumps({"messages": [USER, {**SAID, "weight": 0.5}]}).encode(),
            json.dumps({"messages": [{"role": "user", "content": "\ud83d"}, SAID]}).encode(),
            b'{"messages": ' + b"9" * 5000 + b"}", good.encode()[: len(good) // 2],
        ]  # fmt: skip
        path = tmp_path / "t.jsonl"
        path.write_bytes(b"\n".join(rows))
        found, tally = read(path)
        assert [episode.location for episode in found] == ["t.jsonl:1", "t.jsonl:12"]
        assert found[1].turns[0].messages[0]["content"] == "?"
        reasons = {reason: places for reason, (_, places) in tally.skipped.items()}
        assert reasons.pop("line: it is no JSON; one object a line is read") == [f"t.jsonl:{n}" for n in (4, 5, 13, 14)]
        assert [place for places in reasons.values() for place in places if " " not in place][:1] == ["t.jsonl:3"]
        assert tally.count("line") == 11
        assert tally.count("turn") == 1

    def test_spans_that_are_none_are_counted(self, tmp_path: Path) -> None:
        attributes, _ = current([USER], SAID)
        (good,) = readable([span(1, "chat", attributes)])
        rows: list[Any] = [
            good, good, {**good, "context": {}}, {**good, "context": {"trace_id": 5, "span_id": "0x2"}},
            {**good, "context": {"trace_id": "0x9", "span_id": "0x2"}, "attributes": {"gen_ai.operation.name": "chat"}},
            {**good, "context": {"trace_id": "0x8", "span_id": "0x2"}, "attributes": 7, "events": "no", "links": {}},
            {"resourceSpans": [None, {"scopeSpans": 4}, {"scopeSpans": [{"spans": [3, {"traceId": "a"}]}]}]},
            {**good, "context": {"trace_id": "0x7", "span_id": "0x2"}, "parent_id": "0x2", "start_time": "never"},
        ]  # fmt: skip
        found, tally = read(write(tmp_path / "t.jsonl", rows))
        assert len(found) == 2
        assert tally.count("span") == 5
        assert tally.skipped["span: another one of its trace has the same id"] == (1, ["t.jsonl:2"])
        assert tally.count("trace") == 2

    @settings(max_examples=30)
    @given(
        value=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["messages", "role", "content", "tool_calls", "function", "name", "context", "trace_id", "span_id",
                     "attributes", "events", "links", "resourceSpans", "scopeSpans", "spans", "parts", "type", "id",
                     "key", "value", "gen_ai.output.messages", "gen_ai.input.messages", "message"]
                ) | st.text(max_size=3), inner, max_size=4),
            max_leaves=25,
        )
    )  # fmt: skip
    def test_no_json_is_a_crash(self, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
        good = readable([span(1, "chat", {"gen_ai.operation.name": "chat"})])[0]
        conversation_of = {"messages": [USER, value, {"role": "assistant", "content": value, "tool_calls": value}]}
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": value, "gen_ai.input.messages": value,
                      "gen_ai.prompt.0.role": value, "gen_ai.completion.0": value, "llm.output_messages.0.message": value,
                      "llm.input_messages.0.message.tool_calls": value, "gen_ai.tool.definitions": value,
                      "gen_ai.system_instructions": value, "gen_ai.agent.name": value, "metadata": value}  # fmt: skip
        rows = [value, conversation_of, {"messages": value}, {**good, "attributes": attributes}, {"resourceSpans": value},
                {**good, "context": value}, {**conversation_of, "tools": value, "task": value, "reward": value}]  # fmt: skip
        read(write(tmp_path_factory.getbasetemp() / "any.jsonl", rows))

    def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="cannot read the traces of "):
            list(read_traces([tmp_path / "nowhere.jsonl"], SkipCounter()))

    def test_a_line_without_end_is_never_held_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "MAX_LINE_BYTES", 1000)
        path = tmp_path / "t.jsonl"
        path.write_text('{"messages": "' + "x" * 5000 + '"}\n' + json.dumps({"messages": [USER, SAID]}) + "\n")
        found, tally = read(path)
        assert [episode.location for episode in found] == ["t.jsonl:2"]
        assert tally.count("line") == 1

    def test_open_traces_are_bounded_and_what_comes_late_is_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trace_builder, "MAX_OPEN_TRACES", 3)
        attributes, _ = current([USER], SAID)
        told = [{**span(1, "chat", attributes), "trace": trace} for trace in range(1, 11)]
        told.append({**span(2, "late", {}), "trace": 1})
        tally, whole = SkipCounter(), list[int]()
        for number, _ in enumerate(read_traces([write(tmp_path / "t.jsonl", readable(told))], tally), 1):
            whole.append(number)
        assert whole == list(range(1, 11))
        assert tally.count("span") == 1
        assembly, held = trace_builder.TraceBuilder(SkipCounter()), list[int]()
        for one in told:
            for table in readable([one]):
                for found in spans_in(table, "here", SkipCounter()):
                    list(assembly.add_span(found))
                    held.append(len(assembly._traces))
        assert max(held) == 3

    def test_a_conversation_has_so_many_turns_at_most(self, tmp_path: Path) -> None:
        (episode,), tally = read(write(tmp_path / "t.jsonl", [{"messages": [USER, SAID] * (MAX_TURNS + 5)}]))
        assert len(episode.turns) == MAX_TURNS
        assert tally.count("turn") == 5

    def test_reasons_are_bounded_too(self) -> None:
        tally = SkipCounter()
        for number in range(1000):
            tally.skip("turn", f"reason {number}", "here")
        assert tally.count() == 1000
        assert len(tally.skipped) <= 201


@pytest.mark.slow
@pytest.mark.parametrize("kind", some(["conversations", "spans"]))
def test_memory_does_not_grow_with_the_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_builder, "MAX_OPEN_TRACES", 32)
    monkeypatch.setattr(trace_builder, "MAX_CLOSED_TRACES", 100)
    attributes, _ = current([USER], {**SAID, "content": "x" * 1000})
    peaks = []
    for count in (300, 3000):
        rows = (
            {"messages": [USER, {**SAID, "content": "x" * 1000}]}
            if kind == "conversations"
            else readable([{**span(1, "chat", attributes), "trace": number + 1}])[0]
            for number in range(count)
        )
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        tracemalloc.start()
        assert sum(1 for _ in read_traces([path], SkipCounter())) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
