"""Conversations of the layouts that people have: whose answer is whose, and what is refused, with its row and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft_serve.traces.reader import read_traces
from marft_serve.traces.types import SkipCounter, TracedEpisode
from tests.tracing import current, otlp, span, write

USER = {"role": "user", "content": "1 + 2?"}
SAID = {"role": "assistant", "content": "It is 3."}


def read(path: Path, *lines: dict[str, Any]) -> tuple[list[TracedEpisode], SkipCounter]:
    tally = SkipCounter()
    return list(read_traces([write(path / "t.jsonl", list(lines))], tally)), tally


def call(name: str = "add", arguments: Any = '{"a": 1}', **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def answer(text: str, **more: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, **more}


def outputs(episode: TracedEpisode) -> list[tuple[str, str]]:
    return [(one.name, one.output) for turn in episode.turns for one in turn.calls]


class TestAnswers:
    def test_two_calls_of_one_id_have_an_answer_each(self, tmp_path: Path) -> None:
        messages = [
            USER,
            calling(call(id="c"), call(id="c")),
            answer("1", tool_call_id="c"),
            answer("2", tool_call_id="c"),
        ]
        (episode,), tally = read(tmp_path, {"messages": [*messages, SAID]})
        assert outputs(episode) == [("add", "1"), ("add", "2")]
        shown = [message["tool_call_id"] for message in episode.turns[1].messages if message["role"] == "tool"]
        assert shown == ["call00000", "call00001"]
        assert not tally.skipped

    def test_of_which_one_is_missing_only_the_first_has_one(self, tmp_path: Path) -> None:
        messages = [USER, calling(call(id="c"), call(id="c")), answer("1", tool_call_id="c"), SAID]
        (episode,), _ = read(tmp_path, {"messages": messages})
        assert (outputs(episode), episode.turns[0].missing_results) == ([("add", "1"), ("add", "")], (1,))

    def test_ids_that_come_again_in_each_turn_are_that_turns(self, tmp_path: Path) -> None:
        turns = [message for text in "12" for message in (calling(call(id="c")), answer(text, tool_call_id="c"))]
        (episode,), tally = read(tmp_path, {"messages": [USER, *turns, SAID]})
        assert outputs(episode) == [("add", "1"), ("add", "2")]
        assert not tally.skipped

    def test_without_ids_they_go_by_order_and_name(self, tmp_path: Path) -> None:
        """As TRL documents rows with tools."""
        calls = calling(call(arguments={"a": 1}), call("mul", {"a": 2}), call(arguments={"a": 3}))
        tools = [answer("mul!", name="mul"), answer("first", name="add"), answer("second", name="add")]
        (episode,), tally = read(tmp_path, {"messages": [USER, calls, *tools, SAID], "tools": '[{"name": "add"}]'})
        assert outputs(episode) == [("add", "first"), ("mul", "mul!"), ("add", "second")]
        assert [tool.name for tool in episode.turns[0].tools] == ["add"]
        assert not tally.skipped

    def test_without_ids_and_names_they_go_by_order(self, tmp_path: Path) -> None:
        messages = [USER, calling(call(), call("mul")), answer("1"), answer("2"), SAID]
        (episode,), tally = read(tmp_path, {"messages": messages})
        assert outputs(episode) == [("add", "1"), ("mul", "2")]
        assert not tally.skipped

    @pytest.mark.parametrize("stray", [answer("1", tool_call_id="other"), answer("1", name="mul")])
    def test_that_belong_to_no_call_are_counted_with_the_turn_that_reads_them(
        self, stray: dict[str, Any], tmp_path: Path
    ) -> None:
        (episode,), tally = read(tmp_path, {"messages": [USER, calling(call(id="c")), stray, SAID]})
        assert episode.turns[0].missing_results == (0,)
        (line,) = tally.format_lines()
        assert f"the answer to '{stray.get('tool_call_id') or stray['name']}' belongs to no call" in line
        assert "t.jsonl:1 message 4" in line

    def test_spans_with_one_id_for_several_calls_have_an_answer_each(self, tmp_path: Path) -> None:
        both = calling(call(id="c"), call(id="c"))
        tools = [answer("1", tool_call_id="c"), answer("2", tool_call_id="c")]
        told = [span(1, "chat", current([USER], both)[0]), span(2, "chat", current([USER, both, *tools], SAID)[0])]
        (episode,), _ = read(tmp_path, *otlp(told))
        assert outputs(episode) == [("add", "1"), ("add", "2")]

    def test_tools_spans_of_one_id_are_taken_in_their_order(self, tmp_path: Path) -> None:
        told = []
        for number in (1, 3):
            tool = {
                "gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c",
                "gen_ai.tool.call.result": str(number),
            }  # fmt: skip
            told += [span(number, "chat", current([USER], calling(call(id="c")))[0], start=float(number))]
            told += [span(number + 1, "add", tool, start=number + 0.5)]
        (episode,), _ = read(tmp_path, *otlp(told))
        assert outputs(episode) == [("add", "1"), ("add", "3")]


class TestArguments:
    @pytest.mark.parametrize("written", ['{"a": ', "add 1", "[1]", "1", '{"a": NaN}', [1], 7, '{"a": "\ud800"}'])
    def test_that_are_no_json_object_are_refused_with_row_and_tool(self, written: Any, tmp_path: Path) -> None:
        messages = [USER, calling(call(id="c", arguments=written)), answer("1", tool_call_id="c"), SAID]
        found, tally = read(tmp_path, {"messages": [USER, SAID]}, {"messages": messages})
        assert len(found) == 1
        (line,) = tally.format_lines()
        assert "the arguments of a call of 'add' are no JSON object" in line
        assert "t.jsonl:2 message 2" in line

    @pytest.mark.parametrize("written", [None, "", " ", "{}", {}])
    def test_that_are_not_there_are_none(self, written: Any, tmp_path: Path) -> None:
        (episode,), _ = read(tmp_path, {"messages": [USER, calling(call(arguments=written)), answer("1"), SAID]})
        assert episode.turns[0].calls[0].arguments == "{}"


CALLED = [("add", '{"a": 1}', "3")]
SHAREGPT = {
    "system": "Be brief.",
    "tools": '[{"name": "add", "parameters": {"type": "object"}}]',
    "conversations": [
        {"from": "human", "value": "1 + 2?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "It is 3."},
    ],
}
ANTHROPIC = {
    "system": [{"type": "text", "text": "Be brief."}],
    "tools": [{"name": "add", "input_schema": {"type": "object"}}],
    "messages": [
        USER,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "I add."},
            {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "3"}]},
        ]},
        SAID,
    ],
}  # fmt: skip
TRL = {
    "prompt": [{"role": "system", "content": "Be brief."}, USER],
    "completion": [calling(call(arguments={"a": 1})), answer("3", name="add"), SAID],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
}


@pytest.mark.parametrize("row", [SHAREGPT, ANTHROPIC, TRL], ids=["ShareGPT", "Anthropic", "TRL"])
def test_rows_of_other_layouts_are_the_same_conversation(row: dict[str, Any], tmp_path: Path) -> None:
    (episode,), tally = read(tmp_path, row)
    assert not tally.skipped
    first, last = episode.turns
    assert [message["role"] for message in last.messages] == ["system", "user", "assistant", "tool"]
    assert [(one.name, one.arguments, one.output) for one in first.calls] == CALLED
    assert [tool.name for tool in first.tools] == ["add"]
    assert (last.text, episode.answer) == ("It is 3.", "It is 3.")
    assert (first.reasoning, first.text) == (("Hm.", "I add.") if row is ANTHROPIC else ("", ""))


def test_a_prompt_and_its_completion_may_be_texts(tmp_path: Path) -> None:
    (episode,), tally = read(tmp_path, {"prompt": "1 + 2?", "completion": "<think>Hm.</think>It is 3."})
    (turn,) = episode.turns
    assert (list(turn.messages), turn.text, turn.reasoning) == ([USER], "It is 3.", "Hm.")
    assert not tally.skipped


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "a message is from 'narrator'"),
        ({"conversations": [{"from": "function_call", "value": "add(1)"}]}, "a call is no JSON"),
        ({"messages": [USER, {"role": "user", "content": [{"type": "image", "source": {}}]}]}, "of type 'image'"),
    ],
)
def test_what_cannot_be_read_is_counted_with_its_reason(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    found, tally = read(tmp_path, row)
    assert found == []
    assert why in next(iter(tally.format_lines()))
