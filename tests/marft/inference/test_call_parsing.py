"""Edges of each tool-call syntax: which tool's types count, where reasoning ends, and what an error call quotes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from marft.common.types import Tool
from marft.inference.call_syntax import (
    SYNTAXES,
    CallSyntax,
    GemmaSyntax,
    JsonSyntax,
    PythonSyntax,
    Reasoning,
)
from marft.inference.call_values import MAX_DEPTH, MAX_PYTHON_LITERAL, decode_value
from marft.inference.tool_format import ToolFormat
from tests.marft.inference.test_tool_families import encoded, format_of

OPEN_ENDED = "Magistral, Ministral 3"  # nothing marks the end of its calls
JSON = JsonSyntax("<tool_call>", closing="</tool_call>")
BARE = JsonSyntax()
(GEMMA,) = (syntax for syntax in SYNTAXES if isinstance(syntax, GemmaSyntax))
XML = next(syntax for syntax in SYNTAXES if syntax.opening == "<function=")
MISTRAL = next(syntax for syntax in SYNTAXES if syntax.opening == "[TOOL_CALLS]")
TOOLS = [
    Tool(name, "A tool.", {"type": "object", "properties": {"a": {"type": kind}}})
    for name, kind in (("number", "integer"), ("text", "string"), ("flag", "boolean"))
]


def read(syntax: CallSyntax, text: str, *tools: Tool) -> list[tuple[str, object, bool]]:
    """Return name, arguments and error of each call."""
    calls = syntax.parse_calls(text, Reasoning(), tools)
    return [(call.name, call.arguments if call.error else json.loads(call.arguments), call.error) for call in calls]


@pytest.mark.parametrize(("name", "value"), [("number", 1), ("text", "1"), (" text ", "1")])
def test_types_of_arguments_are_those_of_the_tool_that_is_called(name: str, value: object) -> None:
    text = f"<tool_call>\n<function={name}>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    assert read(XML, text, *TOOLS) == read(XML, text, *TOOLS[::-1]) == [(name.strip(), {"a": value}, False)]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": ["string", "integer"]}, "3", 3),
        ({"type": ["string", "null"]}, "3", "3"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "true", True),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "3", "3"),
        ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, "3", "3"),
        ({"type": ["string", "number"]}, "3", 3),
        ({"type": ["string", "integer"]}, "true", "true"),
        ({"enum": ["3", "4"]}, "3", "3"),
        ({"type": "integer", "enum": ["3", 4]}, "4", 4),
        ({"type": "string", "enum": [3]}, "3", "3"),
        ({"$ref": "#/$defs/word"}, "3", "3"),
        ({"$ref": "#/$defs/count"}, "3", 3),
        ({"type": "array"}, " ['a', None]\n", ["a", None]),
        ({}, "word", "word"),
    ],
)
def test_the_value_of_a_plain_text_has_a_type_of_its_schema(schema: object, text: str, value: object) -> None:
    definitions = {"word": {"type": "string"}, "count": {"type": "integer"}}
    tool = Tool("say", "Say.", {"type": "object", "properties": {"a": schema}, "$defs": definitions})
    written = f"<tool_call>\n<function=say>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    ((_, arguments, error),) = read(XML, written, tool)
    assert (arguments, error) == ({"a": value}, False)


def test_a_long_text_is_not_read_as_a_python_literal() -> None:
    fits = "['" + "a" * (MAX_PYTHON_LITERAL - 4) + "']"
    assert decode_value(fits, {"type": "array"}) == [fits[2:-2]]
    longer = fits + " "
    assert decode_value(longer, {"type": "array"}) == longer


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("{}", {}),
        ('{a:1,b:<|"|>x, y:2<|"|>}', {"a": 1, "b": "x, y:2"}),
        ("{a:[1,{b:true}],c:None}", {"a": [1, {"b": True}], "c": None}),
    ],
)
def test_gemmas_calls_have_bare_keys(written: str, arguments: object) -> None:
    call = f"<|tool_call>call:add{written}<tool_call|>"
    assert read(GEMMA, f"I add. {call}{call}") == [("add", arguments, False)] * 2


class TestJson:
    def test_a_call_without_arguments_has_none(self) -> None:
        assert read(JSON, '<tool_call>{"name": "ping", "id": "1"}</tool_call>') == [("ping", {}, False)]
        assert read(JSON, '<tool_call>{"name": "ping", "input": {}}</tool_call>')[0][2]

    @pytest.mark.parametrize("item", ['"ping"', "3", "null", '{"name": 3, "arguments": {}}', '{"arguments": {}}'])
    def test_what_is_no_call_is_an_error_beside_the_others(self, item: str) -> None:
        text = f'<tool_call>[{item}, {{"name": "ping", "arguments": {{}}}}]</tool_call>'
        assert [(name, error) for name, _, error in read(JSON, text)] == [("", True), ("ping", False)]

    def test_a_text_after_a_call_is_no_call(self) -> None:
        assert read(BARE, '{"name": "ping", "arguments": {}} [see above]') == [("ping", {}, False)]

    def test_another_field_may_be_called_function(self) -> None:
        call = '{"function": "x", "name": "ping", "arguments": {}}'
        assert read(JSON, f"<tool_call>{call}</tool_call>") == [("ping", {}, False)]

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_numbers_that_json_does_not_have_are_errors(self, number: str) -> None:
        (call,) = JSON.parse_calls(f'<tool_call>{{"name": "add", "arguments": {{"a": [{number}]}}}}</tool_call>')
        assert call.error
        assert "not finite" in call.output

    def test_arguments_nest_up_to_a_limit(self) -> None:
        for depth, is_error in ((MAX_DEPTH - 2, False), (MAX_DEPTH - 1, True)):
            nested = "[" * depth + "1" + "]" * depth  # in an object, and the number in the last list
            text = f'<tool_call>{{"name": "add", "arguments": {{"a": {nested}}}}}</tool_call>'
            assert [error for _, _, error in read(JSON, text)] == [is_error]

    def test_arguments_written_apart_stay_as_they_were_written(self) -> None:
        text = '[TOOL_CALLS]add[ARGS]{"a":1.50,"b" : "é"}'
        assert [call.arguments for call in MISTRAL.parse_calls(text)] == ['{"a":1.50,"b" : "é"}']


class TestReasoning:
    def test_an_end_delimiter_at_the_start_ends_the_reasoning_that_the_prompt_began(self) -> None:
        text = '</think><tool_call>{"name": "ping", "arguments": {}}</tool_call>'
        (call,) = JSON.parse_calls(text, Reasoning(inside=True))
        assert call.name == "ping"

    def test_a_turn_without_markers_is_final_once_it_can_start_neither_reasoning_nor_a_call(self) -> None:
        text = "<think>Hm.</think>It is 3."
        sizes = [BARE.final_length(text[:size], Reasoning()) for size in range(len(text) + 1)]
        start = text.index("It")
        assert sizes[1 : len("<think>")] == [0] * (len("<think>") - 1)
        assert sizes[start + 1 :] == list(range(start + 1, len(text) + 1))
        assert BARE.final_length("<thought", Reasoning()) == len("<thought")
        assert BARE.final_length("It is", Reasoning()) == len("It is")
        assert BARE.final_length('{"name"', Reasoning()) == 0

    @pytest.mark.parametrize("inside", [True, False])
    def test_a_teammates_words_without_delimiters_leave_the_reasoning_as_it_was(self, inside: bool) -> None:
        format = replace(ToolFormat.from_format(format_of(OPEN_ENDED)), reasoning=Reasoning(inside=inside))
        for words, expected in (("Hm", inside), ("<think>Hm", True), ("Hm</think>", False)):
            reasoning = format.with_prefix(words).reasoning
            assert reasoning is not None
            assert reasoning.inside == expected


def test_a_turn_without_its_end_token_keeps_its_last_token() -> None:
    chat = format_of(OPEN_ENDED)
    for ended in (True, False):
        (call,) = ToolFormat.from_format(chat).parse_calls(encoded(chat, '[TOOL_CALLS]add[ARGS]{"a": 1}', ended), [])
        assert (call.name, call.arguments) == ("add", '{"a": 1}')


class TestErrorCallsQuoteTheirText:
    def test_without_markers(self) -> None:
        assert read(PythonSyntax(), "[f(x=1, x=2)]") == [("", "[f(x=1, x=2)]", True)]

    def test_up_to_the_end_of_the_call(self) -> None:
        text = '<tool_call>{"name": }</tool_call> and <tool_call>{"name": "ping"}</tool_call>'
        assert read(JSON, text) == [("", '{"name": }', True), ("ping", {}, False)]

    def test_up_to_the_next_call_if_nothing_marks_the_end(self) -> None:
        open_ended = replace(JSON, closing="")
        text = 'Now <tool_call>{"name": }<tool_call>{"name": "ping"}'
        assert read(open_ended, text) == [("", '{"name": }', True), ("ping", {}, False)]

    def test_a_group_without_calls(self) -> None:
        assert read(XML, "Now <tool_call>add(1)</tool_call>") == [("", "<tool_call>add(1)</tool_call>", True)]
