"""Odd and hostile turns: read in time that grows with their length, nothing made that was quoted, nothing lost in silence."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from marft.agents.prompt_messages import tool_call_messages
from marft.common.reasoning import measure_reasoning, split_reasoning, strip_reasoning
from marft.common.types import Tool, ToolCall
from marft.inference.call_syntax import SYNTAXES, JsonSyntax, PythonSyntax, Reasoning
from marft.inference.call_values import decode_value, schema_types
from marft.inference.renderer import ChatRenderer
from marft.inference.tool_format import ToolFormat
from tests import templates
from tests.marft.inference.test_tool_families import ADD, USER, encoded, format_of, reasoned, sampled_turn
from tests.marft.inference.test_tool_format import format_of as over_tiny
from tests.tool_families import FAMILIES

LONG = 50_000
JSON = JsonSyntax("<tool_call>", closing="</tool_call>")


def format_named(name: str) -> ToolFormat:
    return ChatRenderer({"p": format_of(name)}).tool_format("p")


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("filler", [" ", "a", "1", "<", "\n", "{", '"', "[", "<|", "a:", "a</parameter>b", '<|"|>'])
def test_long_turns_are_read_in_linear_time(syntax: object, filler: str) -> None:
    """No test of time: a pattern that tries every way would take minutes here, and hold the whole process."""
    syntax_ = SYNTAXES[SYNTAXES.index(syntax)]  # type: ignore[arg-type]
    start = time.monotonic()
    for head in ("", syntax_.section + syntax_.opening, f"{syntax_.section}{syntax_.opening}call:add{{", "<|channel|>"):
        text = head + filler * (LONG // len(filler)) + "x"
        syntax_.parse_calls(text, Reasoning(), (ADD,))
        syntax_.final_length(text, Reasoning())
        split_reasoning(text)
        measure_reasoning(text)
    assert time.monotonic() - start < 60


def test_a_call_quoted_in_a_malformed_one_is_not_made() -> None:
    inner = '<tool_call>{"name": "delete_all", "arguments": {}}</tool_call>'
    text = f'<tool_call>{{"name": "write", "arguments": {{"text": "page: {inner}"}}}}</tool_call>'
    assert [call.name for call in JSON.parse_calls(text.replace("page: ", 'page: "'))] == [""]


def test_several_objects_after_one_marker_are_several_calls() -> None:
    one, two = '{"name": "one", "arguments": {}}', '{"name": "two", "arguments": {"a": 1}}'
    assert [c.name for c in JSON.parse_calls(f"<tool_call>{one}\n{two}</tool_call>")] == ["one", "two"]
    bare = JsonSyntax("", arguments_key="arguments")
    assert [c.name for c in bare.parse_calls(f"{one}; {two}")] == ["one", "two"]
    assert [c.name for c in bare.parse_calls(f"[{one}, {two}]")] == ["one", "two"]
    (call,) = format_named("Magistral, Ministral 3").parse_calls(
        encoded(format_of("Magistral, Ministral 3"), '[TOOL_CALLS]add[ARGS]{"a": 1} {"b": 2}'), [ADD]
    )
    assert call.error


def test_calls_in_the_form_of_openai_are_read(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    dump = templates.HERMES.replace(
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
        "{{ call | tojson }}",
    )
    found = over_tiny(tiny_tokenizer, dump)
    assert found.syntax is not None
    text = '<tool_call>\n{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}\n</tool_call>'
    assert [(call.name, call.arguments) for call in found.syntax.parse_calls(text)] == [("add", '{"a": 1}')]


class TestChannels:
    """gpt-oss."""

    def test_a_word_that_looks_like_a_recipient_is_text(self) -> None:
        syntax = format_named("gpt-oss (harmony)").syntax
        assert syntax is not None
        text = "Set it to zero or to=5 now."
        assert syntax.locate_calls(text, None) == []
        assert [syntax.final_length(text[:size], None) for size in range(len(text))] == list(range(len(text)))
        ((*_, call),) = syntax.locate_calls("<|channel|>commentary to=functions.add", None)
        assert call.error

    @pytest.mark.parametrize(
        ("text", "reasoning", "message"),
        [
            ("<|channel|>final<|message|>It is 3.", "", "It is 3."),
            ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>3", "Hm.", "3"),
            ("<|channel|>analysis<|message|>Hm.", "Hm.", ""),
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.a<|message|>{}",
                "Hm.",
                "<|start|>assistant<|channel|>commentary to=functions.a<|message|>{}",
            ),
            (
                "It is written as <|channel|>final<|message|>3<|end|>.",
                "",
                "It is written as <|channel|>final<|message|>3<|end|>.",
            ),
        ],
    )
    def test_reasoning_is_the_channel_of_analysis_alone(self, text: str, reasoning: str, message: str) -> None:
        assert split_reasoning(text) == (reasoning, message)
        assert text[measure_reasoning(text) :] == message


def test_answers_of_later_rounds_have_the_number_of_their_call() -> None:
    """Kimi counts the calls of a conversation."""
    format = format_of("Kimi K2")
    renderer, turn = ChatRenderer({"p": format}), encoded(format, "x")
    call = ToolCall("add", '{"a": 1}', output="3")
    first = tool_call_messages("", [call])
    chat = [USER, *first, *tool_call_messages("", [replace(call, output="4")])]
    found = renderer.tool_response("p", turn, chat, [call], [ADD])
    assert isinstance(found, np.ndarray)
    assert "## Return of functions.add:1\n4" in str(format.tokenizer.decode(found.tolist()))


def test_an_argument_that_holds_a_delimiter_does_not_turn_the_call_into_text() -> None:
    call = "<tool_call>\n<function=add>\n<parameter=a>\na</think>b\n</parameter>\n</function>\n</tool_call>"
    assert format_named("Qwen 3.5").text_content(f"I add.\n\n{call}") == "I add."
    assert format_named("Qwen 3.5").text_content(f"Hm.\n</think>\n\nI add.\n\n{call}") == "Hm.\n</think>\n\nI add."


ONE = '<tool_call>{"name": "one", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        f"{ONE} It is no </think>.",
        f"<think>Hm.</think>\n\nI add. {ONE} It is no </think>, and </think>.",
        f"<think>Or {ONE}?</think>I add. {ONE}\n<think>Or {ONE}?</think> It is no </think>.",
    ],
)
def test_a_later_closing_delimiter_is_text_and_the_calls_before_it_stay(text: str) -> None:
    assert [call.name for call in JSON.parse_calls(text, Reasoning())] == ["one"]
    begun = text.removeprefix("<think>") if text.startswith("<think>") else f"Hm.</think>{text}"
    assert [call.name for call in JSON.parse_calls(begun, Reasoning(inside=True))] == ["one"]


@pytest.mark.parametrize(
    ("reasoning", "message", "in_reasoning"),
    [
        ("<think>a</think> ", "b </think> c", None),
        ("<think>a</think> b <think>c</think> ", "d </think>", None),
        ("a</think>", "b</think>c", None),
        ("a</think>", "b</think>c", True),
        ("a</think>", "b</think>c", False),
        (f"<think>{ONE}</think>", "b", None),
        (f"{ONE}</think>", "b", None),
        (f"{ONE}</think>", "b", True),
        ("", f"{ONE}</think>b", False),
        ("", '<tool_call>{"name": "a", "arguments": {"b": "</think>"}}</tool_call>', None),
        ("a</think>", 'b <tool_call>{"name": "a", "arguments": {"b": "<think></think>"}}</tool_call>', None),
        ("", '{"name": "a", "parameters": {"b": "</think>"}}', False),
        ("", '[TOOL_CALLS]a[ARGS]{"b": "</think>"}', False),
        ("<|tool_call>call:a{b:</think>}<tool_call|> c </think>", "d", None),
        ("", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{"b": "</think>"}<｜tool▁call▁end｜>', None),
    ],
)
def test_reasoning_ends_at_a_delimiter_outside_calls(reasoning: str, message: str, in_reasoning: bool | None) -> None:
    assert measure_reasoning(reasoning + message, in_reasoning) == len(reasoning)


def test_an_answer_may_hold_a_closing_delimiter() -> None:
    assert strip_reasoning("<think>4</think>5 </think>6") == "5 </think>6"
    assert strip_reasoning("4 </think>5 </think>6") == "5 </think>6"


@pytest.mark.parametrize(
    "name", [name for name, family in FAMILIES.items() if family.forbidden and "Gemma" not in name]
)
def test_a_value_may_quote_calls(name: str) -> None:
    """Whole calls in a value belong to it, and what begins one and does not end it too."""
    call = FAMILIES[name].call
    start = call[: call.index("1") + 1]
    for value in (call, f"see {call} and\n{call}", start, call.replace("1", call)):
        turn = {**tool_call_messages("", [ToolCall("add", json.dumps({"a": value, "b": 2}))] * 2)[0]}
        ids = sampled_turn(name, {**turn, "content": reasoned(name, "Hm.", "")}, [])
        calls = ChatRenderer({"p": format_of(name)}).calls("p", ids, [])
        assert [json.loads(call.arguments) for call in calls] == [{"a": value, "b": 2}] * 2, value


def test_many_values_that_begin_calls_are_read_in_linear_time() -> None:
    part = "<parameter={}>\n<function=x>\n<parameter=y>\n</parameter>\n"
    calls = SYNTAXES[0].parse_calls("<tool_call>\n<function=f>\n" + "".join(map(part.format, range(1000))))
    assert calls[0].error


@pytest.mark.parametrize("schema", [{"type": None}, {"type": 5}, {"anyOf": [{"type": None}]}, {"enum": [1]}, {}, None])
def test_any_schema_is_read(schema: object) -> None:
    assert decode_value("3", schema) == 3
    assert schema_types({"type": ["string", "null"]}) == {"string", "null"}
    assert decode_value("Infinity", schema) == "Infinity"


@pytest.mark.parametrize(
    ("text", "reason"), [("[f(x=1, x=2)]", "twice"), ("[f(x=" + "(" * 89 + "1" + ",)" * 89 + ")]", "nested")]
)
def test_python_calls_have_the_limits_of_json(text: str, reason: str) -> None:
    (call,) = PythonSyntax().parse_calls(text)
    assert call.error
    assert reason in call.output


def test_arguments_of_spaces_are_none() -> None:
    message = tool_call_messages("", [ToolCall("add", "{ }"), ToolCall("add", "[1]")])[0]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [{}, {"unreadable": "[1]"}]
    assert json.loads("{ }") == {}


def test_tools_may_have_no_parameters() -> None:
    tool = Tool("ping", "Ping.", {})
    text = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"
    (call,) = format_named("Qwen3-Coder").parse_calls(encoded(format_of("Qwen3-Coder"), text), [tool])
    assert (call.name, call.arguments) == ("ping", "{}")
