"""Traces that are damaged on purpose, or larger than anybody needs, are read in bounded memory and end."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marft.common.usage import Usage
from marft_serve.traces import trace_builder
from marft_serve.traces.conversations import MAX_MESSAGES
from marft_serve.traces.messages import build_chat, parse_message, parse_tools
from marft_serve.traces.reader import read_traces
from marft_serve.traces.spans import parse_spans
from marft_serve.traces.types import DEFAULT_AGENT_NAME, MAX_TURNS, SkipCounter
from tests.tracing import agent_attributes, current, otlp, read, readable, span, write

USER = {"role": "user", "content": "1 + 1 ="}
SAID = {"role": "assistant", "content": "2"}
CALL, _ = current([USER], SAID)


class TestSpans:
    def test_a_span_that_lies_in_what_it_is_the_parent_of_is_read_once(self, tmp_path: Path) -> None:
        told = [span(1, "outer", agent_attributes("planner"), parent=2), span(2, "chat", CALL, parent=1, links=[1, 2])]
        (episode,), tally = read(write(tmp_path / "t.jsonl", readable(told)))
        assert [(turn.agent, turn.parents) for turn in episode.turns] == [("planner", ())]
        assert not tally.count()

    def test_a_turn_depends_on_the_last_one_that_had_ended(self, tmp_path: Path) -> None:
        told = [
            span(1, "helper", agent_attributes("helper"), start=0.0), span(2, "chat", CALL, 1, start=1.0),
            span(3, "chat", CALL, 1, start=2.0), span(4, "chat", CALL, start=2.2, links=[1]),
        ]  # fmt: skip
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [int(name, 16) for name in episode.turns[2].parents] == [2]
        told.append(span(5, "chat", CALL, start=3.0, links=[1]))
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [int(name, 16) for name in episode.turns[3].parents] == [3]

    def test_an_agents_turn_depends_on_what_called_it_and_not_on_its_own_or_its_neighbours(
        self, tmp_path: Path
    ) -> None:
        told = [
            span(1, "x", agent_attributes("boss"), start=0.0), span(2, "chat", CALL, 1, start=1.0),
            span(3, "x", agent_attributes("worker"), 1, start=2.0), span(4, "chat", CALL, 3, start=3.0),
            span(5, "chat", CALL, 3, start=4.0), span(6, "x", agent_attributes("tester"), 1, start=5.0),
            span(7, "chat", CALL, 6, start=6.0), span(8, "chat", CALL, 1, start=7.0),
        ]  # fmt: skip
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        depends = {int(turn.id, 16): [int(name, 16) for name in turn.parents] for turn in episode.turns}
        assert depends == {2: [], 4: [2], 5: [2], 7: [2], 8: []}

    def test_agents_are_named_from_the_innermost_on_however_far_out_they_are(self, tmp_path: Path) -> None:
        steps = [span(number, "step", {}, parent=number - 1, start=0.0) for number in range(2, 50)]
        within = {**CALL, "metadata": json.dumps({"langgraph_checkpoint_ns": "outer:1|middle:2|inner:3"})}
        told = [span(1, "x", agent_attributes("boss"), start=0.0), *steps, span(50, "chat", within, parent=49)]
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert episode.turns[0].names == ("inner", "middle", "outer", "boss")

    def test_a_trace_has_so_many_turns_at_most_and_one_count_of_tokens_is_some(self, tmp_path: Path) -> None:
        wrote = {**CALL, "gen_ai.usage.output_tokens": 3}
        told = [span(number, "chat", wrote) for number in range(1, MAX_TURNS + 3)]
        (episode,), tally = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert len(episode.turns) == MAX_TURNS
        assert tally.count("turn") == 2
        assert episode.turns[0].usage == Usage(0, 3)

    def test_a_turn_depends_on_all_that_it_is_linked_to(self, tmp_path: Path) -> None:
        told = [span(1, "chat", CALL), span(2, "chat", CALL), span(3, "chat", CALL, links=[1, 2])]
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [int(name, 16) for name in episode.turns[2].parents] == [1, 2]

    def test_what_a_tool_answered_is_what_was_first_told_of_it(self, tmp_path: Path) -> None:
        function = {"name": "add", "arguments": "{}"}
        calls = [{"id": name, "type": "function", "function": function} for name in "cd"]
        calling = {"role": "assistant", "content": "", "tool_calls": calls}
        later = [[("c", "1")], [("c", "trimmed"), ("d", "2")]]
        told = [span(1, "chat", current([USER], calling)[0])]
        for number, answers in enumerate(later, 2):
            tools = [{"role": "tool", "tool_call_id": name, "content": text} for name, text in answers]
            told.append(span(number, "chat", current([USER, calling, *tools], SAID)[0]))
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [call.output for call in episode.turns[0].calls] == ["1", "2"]

    def test_of_several_choices_the_first_is_what_was_said(self, tmp_path: Path) -> None:
        said = [{"role": "assistant", "parts": [{"type": "text", "content": text}]} for text in ("2", "3")]
        two = {**CALL, "gen_ai.output.messages": json.dumps(said)}
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp([span(1, "chat", two)])))
        assert [turn.text for turn in episode.turns] == ["2"]

    def test_what_lies_very_deep_is_read_too(self, tmp_path: Path) -> None:
        deep = [span(number, "step", {}, parent=number - 1, start=0.0) for number in range(1, 1000)]
        told = [*deep, span(1000, "chat", CALL, parent=999, start=1.0)]
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert len(episode.turns) == 1

    @pytest.mark.parametrize(("name", "most_open"), [("MAX_TEXT_CHARS", 25_000), ("MAX_SPANS", 3)])
    def test_what_is_open_has_so_many_spans_and_characters_at_most(
        self, name: str, most_open: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trace_builder, name, most_open)
        long, _ = current([{**USER, "content": "x" * 6000}], SAID)
        tally = SkipCounter()
        assembly, closed, most = trace_builder.TraceBuilder(tally), [], 0
        for trace in (1, 2, 3, 4, 5, 1):
            (one,) = readable([{**span(len(closed) + 1, "chat", long), "trace": trace}])
            for found in parse_spans(one, "here", tally):
                assert found.size > 6000
                closed += [episode.id for episode in assembly.add_span(found)]
            most = max(most, len(assembly._traces))
        assert (most, [int(name, 16) for name in closed]) == (3, [1, 2])
        assert [int(episode.id, 16) for episode in assembly.close()] == [3, 4, 5]
        assert tally.count("span") == 1

    def test_the_trace_that_was_longest_quiet_is_closed_with_all_its_spans(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trace_builder, "MAX_SPANS", 4)
        assembly, closed, left = trace_builder.TraceBuilder(SkipCounter()), [], []
        for number, trace in enumerate((1, 2, 2, 1, 3, 3, 3), 1):
            (one,) = readable([{**span(number, "chat", CALL), "trace": trace}])
            for found in parse_spans(one, "here", SkipCounter()):
                closed += [int(episode.id, 16) for episode in assembly.add_span(found)]
                left.append(sum(map(len, assembly._traces.values())))
        assert (closed, left) == ([2, 1], [1, 2, 3, 4, 3, 4, 3])

    def test_ids_of_calls_may_come_again_and_what_a_model_was_told_goes_before_what_its_tool_said(
        self, tmp_path: Path
    ) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        calling: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c", "gen_ai.tool.call.result": "raw"}
        chat, told = [USER], [span(9, "add", tool, start=9.0)]
        for number, answer in enumerate(("1", "2"), 1):
            told.append(span(number, "chat", current(chat, calling)[0]))
            chat = [*chat, calling, {"role": "tool", "tool_call_id": "c", "content": answer}]
        told.append(span(3, "chat", current(chat, SAID)[0]))
        (episode,), tally = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [call.output for turn in episode.turns for call in turn.calls] == ["1", "2"]
        assert not tally.count()

    def test_a_trace_is_about_what_its_outermost_span_says_and_else_the_one_that_began(self, tmp_path: Path) -> None:
        told = [
            span(1, "step", {"marft.task": "sum/7", "marft.reward": 0.5}, parent=2, start=0.0),
            span(2, "program", {"marft.task": "sum/1"}, parent=99, start=0.1), span(3, "chat", CALL, 2, start=1.0),
        ]  # fmt: skip
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert (episode.task, episode.reward) == ("sum/1", 0.5)

    def test_the_answer_is_what_was_said_last_without_calling_a_tool(self, tmp_path: Path) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        calling = {"role": "assistant", "content": "I look once more.", "tool_calls": [call]}
        said = [{**SAID, "content": "Let me see."}, SAID, calling]
        told = [span(number, "chat", current([USER], message)[0]) for number, message in enumerate(said, 1)]
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert episode.answer == "2"

    @pytest.mark.parametrize("key", ["gen_ai.tool.call.id", "tool_call.id", "tool.id"])
    def test_answers_of_tools_are_found_by_every_name_of_their_calls_id(self, key: str, tmp_path: Path) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        calling, _ = current([USER], {"role": "assistant", "content": "", "tool_calls": [call]})
        told = [span(1, "chat", calling), span(2, "add", {key: "c", "output.value": "7"})]
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert episode.turns[0].calls[0].output == "7"

    def test_an_agent_that_says_what_it_said_is_no_call_of_a_model(self, tmp_path: Path) -> None:
        told = [span(1, "x", {**CALL, **agent_attributes("planner")}), span(2, "chat", CALL, 1)]
        (episode,), tally = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [(int(turn.id, 16), turn.agent) for turn in episode.turns] == [(2, "planner")]
        assert not tally.count()

    def test_a_call_may_be_told_on_its_span_and_its_event_and_one_that_says_nothing_is_counted(
        self, tmp_path: Path
    ) -> None:
        asked = {key: value for key, value in CALL.items() if key != "gen_ai.output.messages"}
        said = [
            ("gen_ai.client.inference.operation.details", {"gen_ai.output.messages": CALL["gen_ai.output.messages"]})
        ]
        nothing = {**CALL, "gen_ai.output.messages": "[]"}
        silent = {**CALL, "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": []}])}
        told = [span(1, "chat", asked, events=said), span(2, "chat", nothing), span(3, "chat", silent)]
        (episode,), tally = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [([m["content"] for m in turn.messages], turn.text) for turn in episode.turns] == [
            (["1 + 1 ="], "2"), (["1 + 1 ="], ""),
        ]  # fmt: skip
        assert (tally.count("turn"), tally.count()) == (1, 1)

    def test_instructions_stand_once_in_the_chat_and_thoughts_go_by_either_name(self, tmp_path: Path) -> None:
        system = {"role": "system", "content": "Be brief."}
        attributes, _ = current([system, USER], SAID)
        attributes["gen_ai.system_instructions"] = json.dumps([{"type": "text", "content": "Be brief."}])
        parts = [{"type": "thinking", "content": "Hm."}, {"type": "text", "content": "2"}]
        attributes["gen_ai.output.messages"] = json.dumps([{"role": "assistant", "parts": parts}])
        (episode,), tally = read(write(tmp_path / "t.jsonl", otlp([span(1, "chat", attributes)])))
        (turn,) = episode.turns
        assert (list(turn.messages), turn.reasoning, turn.text) == ([system, USER], "Hm.", "2")
        assert not tally.count()


class TestConversations:
    def test_turns_beyond_those_of_an_episode_are_counted_also_where_it_has_many_lines(self, tmp_path: Path) -> None:
        row = {"episode": "e", "messages": [USER, SAID] * 100}
        found, tally = read(write(tmp_path / "t.jsonl", [row] * 4 + [{"episode": "f", "messages": [USER, SAID]}]))
        assert [len(episode.turns) for episode in found] == [MAX_TURNS, 1]
        assert len({turn.id for turn in found[0].turns}) == MAX_TURNS
        assert tally.skipped == {
            f"turn: its episode has more than {MAX_TURNS} turns": (
                400 - MAX_TURNS, ["t.jsonl:3"] * 5,
            )
        }  # fmt: skip

    def test_what_later_lines_say_of_an_episode_counts(self, tmp_path: Path) -> None:
        rows = [
            {"episode": "e", "messages": [USER, SAID], "reward": 0.5},
            {"episode": "e", "messages": [USER, {**SAID, "content": "3"}], "task": "sum/1", "reward": 1.0},
            {"episode": "e", "messages": [USER, {**SAID, "content": "4"}], "task": "sum/2"},
        ]
        ((episode,), _) = read(write(tmp_path / "t.jsonl", rows))
        assert (episode.id, episode.task, episode.answer, episode.reward) == ("e", "sum/1", "4", 1.0)
        assert [turn.id for turn in episode.turns] == ["1", "1/1", "2/1"]

    def test_what_was_refused_thought_and_called_is_read_as_it_is_meant(self) -> None:
        thinks = {**SAID, "content": "<think>\nShown.\n</think>\n\n2", "reasoning_content": "Told."}
        both, refused = parse_message(thinks), parse_message({**SAID, "content": None, "refusal": "I will not."})
        assert (both.reasoning, both.text) == ("Told.", thinks["content"])
        assert refused.text == "I will not."
        assert parse_message({**SAID, "refusal": "I will not."}).text == "2"
        calls = [{"function": {"name": "add", "arguments": "{}"}}] * 2
        assert [call.id for call in parse_message({**SAID, "tool_calls": calls}).calls] == ["add/0", "add/1"]
        user = parse_message({**USER, "name": "Ann", "tool_calls": calls})
        assert (user.calls, user.tool_call_id) == ((), "")

    def test_a_chat_that_nobody_named_is_one_agents_and_what_others_called_alone_is_not_told(self) -> None:
        call = {"id": "c", "function": {"name": "add", "arguments": "{}"}}
        told = {"role": "tool", "tool_call_id": "c", "content": "1"}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        plan, mine, unnamed, asked, answer = map(
            parse_message, ({**calling, "name": "boss"}, {**calling, "name": "a"}, SAID, USER, told)
        )
        assert [m["role"] for m in build_chat([asked, plan, answer, unnamed], "a")] == ["user", "assistant"]
        assert [m["role"] for m in build_chat([asked, plan, answer, mine, answer], "a")] == [
            "user",
            "assistant",
            "tool",
        ]
        assert [m["role"] for m in build_chat([asked, plan, answer], DEFAULT_AGENT_NAME)] == [
            "user",
            "assistant",
            "tool",
        ]

    def test_what_a_tool_takes_is_known_by_either_name_and_not_where_it_is_nested_too_deep(self) -> None:
        deep: dict[str, Any] = {}
        for _ in range(100):
            deep = {"properties": deep}
        schema = {"type": "object"}
        offered = [{"name": "a", "input_schema": schema}, {"name": "b", "parameters": deep}, {"parameters": schema}]
        assert [(tool.name, tool.parameters) for tool in parse_tools(offered)] == [("a", schema), ("b", {})]

    def test_a_reward_of_0_on_a_later_line_counts_and_calls_at_the_end_are_no_answer(self, tmp_path: Path) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        calling = {"role": "assistant", "content": None, "tool_calls": [call]}
        rows = [{"episode": "e", "messages": [USER, SAID], "reward": 1}]
        rows.append({"episode": "e", "messages": [USER, calling], "reward": 0})
        rows.append({"episode": "f", "messages": [USER, SAID]})
        found, _ = read(write(tmp_path / "t.jsonl", [*rows, {"episode": "f", "messages": [USER, SAID]}]))
        assert (found[0].reward, found[0].answer) == (0.0, "2")
        assert [turn.id for turn in found[1].turns] == ["1", "1/1"]

    def test_ids_of_calls_may_come_again(self, tmp_path: Path) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        calling = {"role": "assistant", "content": None, "tool_calls": [call]}
        told = [USER, calling, {"role": "tool", "tool_call_id": "c", "content": "1"}]
        told += [calling, {"role": "tool", "tool_call_id": "c", "content": "2"}, SAID]
        (episode,), _ = read(write(tmp_path / "t.jsonl", [{"messages": told}]))
        assert [call.output for turn in episode.turns for call in turn.calls] == ["1", "2"]

    def test_a_turn_that_very_many_messages_stand_before_is_counted(self, tmp_path: Path) -> None:
        rows = [{"messages": [USER] * count + [SAID]} for count in (MAX_MESSAGES, MAX_MESSAGES + 1)]
        (episode,), tally = read(write(tmp_path / "t.jsonl", rows))
        assert len(episode.turns[0].messages) == MAX_MESSAGES
        assert tally.count("turn") == 1

    def test_roles_are_read_in_any_case_and_an_empty_answer_of_a_tool_is_one(self, tmp_path: Path) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        told = [{**USER, "role": "User"}, {"role": "Assistant", "content": "", "tool_calls": [call]}]
        rows = [{"messages": [*told, {"role": "tool", "tool_call_id": "c", "content": ""}]}, {"messages": told}]
        found, tally = read(write(tmp_path / "t.jsonl", rows))
        assert [episode.turns[0].missing_results for episode in found] == [(), (0,)]
        assert not tally.count()


class TestFiles:
    def test_the_open_traces_of_every_file_are_read_and_other_lines_between_their_spans_end_none(
        self, tmp_path: Path
    ) -> None:
        first, second = readable([span(1, "chat", CALL), span(2, "chat", CALL)])
        one = write(tmp_path / "one.jsonl", [first, {"messages": [USER, SAID]}, second])
        two = write(tmp_path / "two.jsonl", [first])
        found = list(read_traces([one, two], tally := SkipCounter()))
        assert [(len(e.turns), e.location) for e in found] == [
            (1, "one.jsonl:2"),
            (2, "one.jsonl:1"),
            (1, "two.jsonl:1"),
        ]
        assert not tally.count()

    def test_what_was_left_out_is_told_the_most_frequent_first_with_some_places(self) -> None:
        tally = SkipCounter()
        for number in range(1, 7):
            tally.skip("turn", "often", f"t:{number}")
        tally.skip("line", "once", "t:9")
        assert list(tally.format_lines()) == ["6 × turn: often  (t:1, t:2, t:3, t:4, t:5, …)", "1 × line: once  (t:9)"]
        for number in range(300):
            tally.skip("span", f"reason {number}", "t")
        tally.skip("turn", "often", "t:10")
        assert tally.skipped["turn: often"][0] == 7, "a reason that is known stays itself"

    @pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS"])
    @pytest.mark.parametrize("key", ["response", "result", "content"])
    def test_answers_and_limits_go_by_every_name_that_instrumentations_have(
        self, key: str, reason: str, tmp_path: Path
    ) -> None:
        call = {"type": "tool_call", "id": "c", "name": "add", "arguments": {}}
        told = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", key: {"sum": 2}}]}
        asked = [*json.loads(CALL["gen_ai.input.messages"]), {"role": "assistant", "parts": [call]}, told]
        said = [{"role": "assistant", "parts": [{"type": "text", "content": "2"}], "finish_reason": reason}]
        said.append({**said[0], "finish_reason": "stop"})
        attributes = {"gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(said)}
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp([span(1, "chat", {**CALL, **attributes})])))
        assert (episode.turns[0].messages[-1]["content"], episode.turns[0].complete) == ('{"sum": 2}', False)


def long_episode(lines: int) -> Iterator[dict[str, Any]]:
    for number in range(lines):
        yield {"episode": "one", "messages": [USER, {**SAID, "content": f"{number} " + "x" * 1000}]}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_lines_of_an_episode(tmp_path: Path) -> None:
    peaks = []
    for count in (500, 4000):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in long_episode(count)))
        tracemalloc.start()
        assert sum(1 for _ in read_traces([path], SkipCounter())) == 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
