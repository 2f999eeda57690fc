"""Calls of traces are read in every form that rows have them in, with the answers that are theirs, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marft_serve.traces.messages import match_tool_results, parse_calls, parse_message
from marft_serve.traces.types import UnreadableError
from tests.helpers import settings
from tests.marft_serve.test_retelling import TestTools, prompt_of, said, told
from tests.tracing import write

GIVEN = {"a": 1, "b": 2}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def call(arguments: object = "{}", **more: Any) -> dict[str, Any]:
    return {"function": {"name": "add", "arguments": arguments}, **more}


class TestArguments:
    @pytest.mark.parametrize(
        "message",
        [
            calling({"function": {"name": "add", "parameters": GIVEN}}),
            calling({"function": {"name": "add", "input": json.dumps(GIVEN)}}),
            calling({"name": "add", "args": GIVEN}),
            calling({"function": {"name": "add"}, "arguments": GIVEN}),
            calling({"function": {"name": "add", "arguments": None, "parameters": GIVEN}}),
            {"role": "assistant", "tool_calls": json.dumps([call(GIVEN)])},
            {"role": "assistant", "function_call": json.dumps({"name": "add", "arguments": GIVEN})},
        ],
    )
    def test_are_read_by_whatever_key_a_row_has_them(self, message: dict[str, Any]) -> None:
        (found,) = parse_calls(message)
        assert (found.name, json.loads(found.arguments)) == ("add", GIVEN)

    @pytest.mark.parametrize(
        ("message", "why"),
        [
            (calling({"function": {"name": "add", "a": 1}}), "no arguments, and the unknown key 'a'"),
            (calling(call('{"a": 1e999}')), "no JSON object"),
            (calling(call('{"a": "\\ud800"}')), "no JSON object"),
            (calling(call('{"a": 1,}')), "no JSON object"),
            ({"role": "assistant", "tool_calls": call()}, "are no list"),
            ({"role": "assistant", "tool_calls": "[{add"}, "are no list"),
            ({"role": "assistant", "function_call": "add"}, "are no list"),
        ],
    )
    def test_that_nobody_can_read_are_refused_and_never_empty(self, message: dict[str, Any], why: str) -> None:
        with pytest.raises(UnreadableError, match=why):
            parse_message(message)


def test_an_answer_without_an_id_is_of_a_call_without_one_first() -> None:
    both = parse_message(calling(call(id="x"), call()))
    unnamed = parse_message({"role": "tool", "name": "add", "content": "of the second"})
    named = parse_message({"role": "tool", "tool_call_id": "x", "content": "of the first"})
    for answers in ([unnamed, named], [named, unnamed]):
        turn, *found = match_tool_results([both, *answers])
        places = {answer.tool_call_id: answer.text for answer in found}
        assert [places[one.id] for one in turn.calls] == ["of the first", "of the second"]


class TestCallsInTexts:
    @pytest.mark.parametrize("prompts", ["recipe", "trace"])
    @pytest.mark.parametrize(
        ("written", "why"),
        [
            ('{"name": "mul", "arguments": {"a": 1}}', "it calls 'mul', and the agent is offered add alone"),
            ('{"name": "add", "arguments": {"a": 1,}}', "its text makes a call that cannot be read"),
            ('{"name": "add", "arguments": [1]}', "the arguments of a call of 'add' are no JSON object"),
            ('{"add": {"a": 1}}', "its text makes a call that cannot be read"),
        ],
    )
    def test_that_would_be_refused_when_the_agent_acts_are_not_learned(
        self, tmp_path: Path, prompts: str, written: str, why: str
    ) -> None:
        run = TestTools().calling(tmp_path, "--sft.prompts", prompts)
        text = f"I add.\n<tool_call>\n{written}\n</tool_call>"
        messages = [{"role": "user", "content": prompt_of(run)}, said("reasoner", "Add."), said("actor", text)]
        _, tally, actions = told(run, write(tmp_path / "t.jsonl", [{"messages": messages, "tools": [ADD]}]))
        assert "actor" not in {action.agent for action in actions}
        assert any(why in reason for reason in tally.skipped)

    def test_that_tools_answer_are_refused_with_the_reason(self, tmp_path: Path) -> None:
        run = TestTools().calling(tmp_path, "--sft.prompts", "trace")
        text = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
        messages = [
            {"role": "user", "content": prompt_of(run)}, said("reasoner", "Add."), said("actor", text),
            {"role": "tool", "content": "3"}, said("actor", "3"),
        ]  # fmt: skip
        _, tally, actions = told(run, write(tmp_path / "t.jsonl", [{"messages": messages, "tools": [ADD]}]))
        assert [action.agent for action in actions] == ["reasoner", "actor"]
        assert any("calls in texts are not read" in reason for reason in tally.skipped)

    def test_of_a_template_without_calls_are_text(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--sft.prompts", "trace")
        messages = [{"role": "user", "content": prompt_of(run)}, said("reasoner", "Add."), said("actor", "It is 3.")]
        _, tally, actions = told(run, write(tmp_path / "t.jsonl", [{"messages": messages, "tools": [ADD]}]))
        assert [action.agent for action in actions] == ["reasoner", "actor"]
        assert not tally.skipped


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
