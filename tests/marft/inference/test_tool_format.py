"""How models write calls and are shown results: read off their chat templates, and never a crash."""

from __future__ import annotations

import copy
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from transformers import AddedToken, PreTrainedTokenizerBase

from marft.common.types import Tool, ToolCall
from marft.inference.call_syntax import JsonSyntax
from marft.inference.call_values import build_tool_call
from marft.inference.chat_messages import ChatFormat
from marft.inference.tool_format import ToolFormat
from marft.models import chat_templates as other_process
from tests import templates
from tests.nights import BY_NIGHT, MANY

ADD = ToolCall("add", '{"a": 1, "b": 2}', output="3")
SUB = ToolCall("sub", '{"a": 1}', output="not <|im_end|> done")


def tagged() -> dict[str, Any]:
    """How TAGS writes, in the words of transformers."""
    return {
        "fields": {
            "content": {},
            "tool_calls": {
                "open_pattern": r"<tool_call>\n<function=(?P<name>[^>]*)>",
                "close": "</function>\n</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>]*)>(?P<value>.*?)</parameter>"},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
        },
        "start_anchor": "<|im_start|>assistant",
    }


def speaks(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


def format_of(tokenizer: PreTrainedTokenizerBase, template: str) -> ToolFormat:
    other = speaks(tokenizer, template)
    assert isinstance(other.eos_token_id, int)
    return ToolFormat.from_format(ChatFormat(other, 512, {}, (other.eos_token_id,)))


def turn(format_: ToolFormat, text: str, ended: bool = True) -> np.ndarray:
    ids = format_.chat.tokenizer.encode(text, add_special_tokens=False)
    return np.array([*ids, *format_.chat.stop_ids[: int(ended)]], np.int32)


@pytest.mark.parametrize(
    ("template", "syntax", "text"),
    [
        (
            templates.HERMES,
            JsonSyntax("<tool_call>", closing="</tool_call>"),
            "Well.\n<tool_call>\n{call}\n</tool_call>",
        ),
        (
            templates.BARE,
            JsonSyntax("", arguments_key="parameters"),
            ' {"name": "add", "parameters": {"a": 1, "b": 2}}',
        ),
        (templates.LIST, JsonSyntax("[TOOL_CALLS]"), "[TOOL_CALLS] [{call}]"),
        (
            templates.THINKS,
            JsonSyntax("<tool_call>", closing="</tool_call>"),
            "<think>\n</think>\n<tool_call>{call}</tool_call>",
        ),
        (templates.THOUGHTLESS, JsonSyntax("<tool_call>", closing="</tool_call>"), "<tool_call>{call}</tool_call>"),
    ],
)
def test_the_format_is_read_off_the_template(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str, syntax: JsonSyntax, text: str
) -> None:
    found = format_of(tiny_tokenizer, template)
    assert found.syntax == syntax
    said = text.replace("{call}", '{"name": "add", "arguments": {"a": 1, "b": 2}}')
    assert found.parse_calls(turn(found, said), ()) == [ToolCall("add", '{"a": 1, "b": 2}')]
    assert found.parse_calls(turn(found, "The answer is 3."), ()) == []


def test_several_calls_in_one_turn_come_in_order(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    found = format_of(tiny_tokenizer, templates.HERMES)
    one, two = '{"name": "a", "arguments": {}}', '{"name": "b", "arguments": {"x": [1]}}'
    calls = found.parse_calls(turn(found, f"<tool_call>{one}</tool_call> and <tool_call>{two}</tool_call>"), ())
    assert [(call.name, call.arguments) for call in calls] == [("a", "{}"), ("b", '{"x": [1]}')]
    listed = format_of(tiny_tokenizer, templates.LIST)
    assert [c.name for c in listed.parse_calls(turn(listed, f"[TOOL_CALLS][{one}, {two}]"), ())] == ["a", "b"]


@pytest.mark.parametrize("template", [templates.HERMES, templates.BARE, templates.LIST])
def test_answers_are_what_the_template_itself_appends(tiny_tokenizer: PreTrainedTokenizerBase, template: str) -> None:
    found = format_of(tiny_tokenizer, template)
    chat = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "id": "call00000", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
        ]},
    ]  # fmt: skip
    answer = {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "3"}

    def ids(messages: list[dict[str, object]], begin: bool) -> list[int]:
        return list(found.chat.tokenizer.apply_chat_template(messages, add_generation_prompt=begin, return_dict=False))

    whole, before = ids([*chat, answer], True), ids(chat, False)
    last = max(place for place, token in enumerate(before) if token in found.chat.stop_ids)
    assert found.encode_response([ADD], found.chat.stop_ids[0]).tolist() == whole[last + 1 :]
    assert found.encode_response([ADD]).tolist() == whole[last:]


def test_what_a_tool_says_never_becomes_a_control_token(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    found = format_of(tiny_tokenizer, templates.HERMES)
    plain, evil = found.encode_response([ADD]), found.encode_response([SUB])
    stops = set(found.chat.stop_ids)
    assert sum(int(t) in stops for t in evil) == sum(int(t) in stops for t in plain)
    assert "not <|im_end|> done" in str(found.chat.tokenizer.decode(evil.tolist()))


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "leaves tools out"),
        (templates.NO_ANSWERS, "cannot show what tools answered"),
        (templates.TAGS.replace("<parameter=", "<argument="), "writes calls in no known syntax"),
        (
            templates.HERMES.replace("{{ tool | tojson }}", "{{ raise_exception('no') }}"),
            "cannot render tools and their",
        ),
    ],
)
def test_a_template_that_will_not_do_is_refused_with_a_remedy(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str | None, why: str
) -> None:
    with pytest.raises(ValueError, match=why) as error:
        format_of(tiny_tokenizer, template or str(tiny_tokenizer.chat_template))
    assert "chat_template" in str(error.value)


def test_a_tokenizer_with_a_response_template_is_parsed_by_it(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    other = speaks(tiny_tokenizer, templates.TAGS)
    other.response_template = tagged()
    assert isinstance(other.eos_token_id, int)
    found = ToolFormat.from_format(ChatFormat(other, 512, {}, (other.eos_token_id,)))
    assert found.syntax is None
    said = turn(found, "Hm.<tool_call>\n<function=add><parameter=a>1</parameter></function>\n</tool_call>")
    tools = [Tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})]
    assert found.parse_calls(said, tools) == [ToolCall("add", '{"a": 1}')]
    assert found.parse_calls(turn(found, "Just text."), tools) == []
    (broken,) = found.parse_calls(turn(found, "<tool_call>\n<function=><parameter=a>"), tools)
    assert broken.error
    assert "could not be read" in broken.output


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [r"(?P<name>(a+)+)$", r"(?P<name>(?:(?:b{1000}){1000}){1000})"])
def test_a_response_template_that_comes_to_no_end_loses_its_call_alone(
    tiny_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    other, template = speaks(tiny_tokenizer, templates.TAGS), tagged()
    template["fields"]["tool_calls"]["open_pattern"] = pattern
    other.response_template = template
    assert isinstance(other.eos_token_id, int)
    found = ToolFormat.from_format(ChatFormat(other, 512, {}, (other.eos_token_id,)))
    monkeypatch.setattr(other_process, "TIMEOUT_SECONDS", 1.0)
    began = time.monotonic()
    (call,) = found.parse_calls(turn(found, "a" * 5000 + "!"), ())
    assert call.error
    assert re.search("still at work after 1 s|MemoryError", call.output)
    assert time.monotonic() - began < 30
    other.response_template = tagged()
    assert found.parse_calls(turn(found, "Just text."), ()) == []


def test_a_marker_inside_the_arguments_is_part_of_them() -> None:
    inner = '{"name": "python", "arguments": {"code": "print(\'<tool_call>{}\')"}}'
    assert [c.name for c in JsonSyntax("<tool_call>").parse_calls(f"<tool_call>{inner} then")] == ["python"]


def test_an_answer_that_is_json_is_no_call() -> None:
    assert JsonSyntax("", arguments_key="parameters").parse_calls('{"name": "Ann", "age": 3}') == []


@pytest.mark.parametrize("inside", ['"\\ud800"', "[" * 300 + "]" * 300, "[" * 900 + "]" * 900, '"\\u0000"', "NaN"])
@pytest.mark.parametrize("template", [templates.HERMES, templates.BARE, templates.LIST])
def test_whatever_the_arguments_hold_an_answer_can_be_appended(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str, inside: str
) -> None:
    found = format_of(tiny_tokenizer, template)
    assert found.syntax is not None
    said = f'{found.syntax.opening}{{"name": "add", "{found.syntax.arguments_key}": {{"a": {inside}}}}}'
    calls = found.syntax.parse_calls(said)
    assert len(calls) == 1
    (calls[0].arguments + calls[0].output).encode()
    assert len(found.encode_response(calls)) > 0


ONE, TWO = '{"name": "one", "arguments": {}}', '{"name": "two", "arguments": {}}'


class TestCallsInThoughts:
    """Over a template that knows of thoughts."""

    @pytest.mark.parametrize(("text", "names"), [
        (f"<think>maybe <tool_call>{ONE}</tool_call></think><tool_call>{TWO}</tool_call>", ["two"]),
        (f"<think>maybe <tool_call>{ONE}</tool_call>", []),
        (f"<think>maybe <tool_call>{ONE}</tool_call></think>No.", []),
        (f"maybe <tool_call>{ONE}</tool_call></think><tool_call>{TWO}</tool_call>", ["one", "two"]),
        (f"<tool_call>{ONE}</tool_call><think>or <tool_call>{ONE}</tool_call>?</think><tool_call>{TWO}", ["one", "two"]),
        (f"<think>a</think><tool_call>{ONE}</tool_call><think><tool_call>{TWO}", ["one"]),
        ('<tool_call>{"name": "one", "arguments": {"a": "</think><think>"}}</tool_call>', ["one"]),
        ("<think>by <tool_call>{\"name\": \"</think><tool_call>" + TWO, ["two"]),
    ])  # fmt: skip
    def test_they_are_not_made(self, tiny_tokenizer: PreTrainedTokenizerBase, text: str, names: list[str]) -> None:
        found = format_of(tiny_tokenizer, templates.THINKS)
        assert [call.name for call in found.parse_calls(turn(found, text), ())] == names

    def test_a_turn_whose_thought_the_template_begins_calls_after_it(
        self, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        found = format_of(tiny_tokenizer, templates.BEGUN)
        call = f"<tool_call>{ONE}</tool_call>"
        assert found.parse_calls(turn(found, f"Hm {call}"), ()) == []
        assert [c.name for c in found.parse_calls(turn(found, f"Hm {call}</think> {call}"), ())] == ["one"]
        assert found.text_content(f"Hm {call}</think>\nSo. {call}") == f"Hm {call}</think>\nSo."
        assert found.text_content(f"So. {call}") == "So."  # its thought was dropped
        closed = turn(found, "Hm.</think>", ended=False)  # by a teammate
        assert [c.name for c in found.parse_calls(turn(found, call), (), closed)] == ["one"]

    def test_what_is_said_ends_at_the_call_after_the_thought(self, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
        found = format_of(tiny_tokenizer, templates.THINKS)
        thought = f"<think>maybe <tool_call>{ONE}</tool_call></think>"
        said = f"{thought} I add.\n<tool_call>{TWO}</tool_call>"
        assert found.text_content(said) == f"{thought} I add."
        assert found.final_length(said) == len(f"{thought} I add.")
        assert found.final_length(f"{thought} I add.\n<tool") == len(f"{thought} I add.")

    def test_a_model_without_thoughts_calls_wherever_it_likes(self, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
        found = format_of(tiny_tokenizer, templates.HERMES)
        assert [c.name for c in found.parse_calls(turn(found, f"<think><tool_call>{ONE}</tool_call>"), ())] == ["one"]

    def test_bare_json_is_a_call_after_a_thought_too(self, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
        found = format_of(tiny_tokenizer, templates.BARE_THINKS)
        call = '{"name": "one", "parameters": {"a": "</think>"}}'
        for text, names in (
            (call, ["one"]), (f"<think>{ONE}</think>\n{call}", ["one"]), (f"<think>{ONE}", []), (f"Hm {call}", []),
        ):  # fmt: skip
            assert [c.name for c in found.parse_calls(turn(found, text), ())] == names
        assert found.text_content(f"<think>Hm.</think>\n{call}") == "<think>Hm.</think>"

    def test_with_a_response_template(self, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
        other = speaks(tiny_tokenizer, templates.TAGS + "{# <think> #}")
        other.response_template = tagged()
        assert isinstance(other.eos_token_id, int)
        found = ToolFormat.from_format(ChatFormat(other, 512, {}, (other.eos_token_id,)))
        call = "<tool_call>\n<function=add><parameter=a>1</parameter></function>\n</tool_call>"
        assert [c.name for c in found.parse_calls(turn(found, f"<think>{call}</think>Hm.{call}"), ())] == ["add"]
        assert found.parse_calls(turn(found, f"<think>{call}"), ()) == []
        assert found.text_content(f"<think>{call}</think>Hm.{call}") == f"<think>{call}</think>Hm."


@pytest.mark.parametrize("special", [True, False])
def test_a_call_after_the_python_tag_is_a_call(tiny_tokenizer: PreTrainedTokenizerBase, special: bool) -> None:
    other = copy.deepcopy(tiny_tokenizer)
    other.add_tokens([AddedToken("<|python_tag|>", special=special, normalized=False)])
    found = format_of(other, templates.BARE)
    assert found.syntax == JsonSyntax("", arguments_key="parameters", optional_tag="<|python_tag|>")
    call = '{"name": "add", "parameters": {"a": 1}}'
    for text in (f"<|python_tag|>{call}", f"\n<|python_tag|> {call}", call):
        assert found.parse_calls(turn(found, text), ()) == [ToolCall("add", '{"a": 1}')]
        assert found.text_content(text) == ""
        assert {found.final_length(text[:end]) for end in range(len(text))} == {0}
    assert found.parse_calls(turn(found, '<|python_tag|>search.call(query="{}")'), ()) == []
    assert found.parse_calls(turn(found, f"So <|python_tag|>{call}"), ()) == []
    plain = format_of(tiny_tokenizer, templates.BARE)
    assert plain.parse_calls(turn(plain, f"<|python_tag|>{call}"), ()) == []


WORDS = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": ', '"add"', ', "arguments": ', "{", "}", "[", "]", '"', "\\ud800", "\\",
     "null", "NaN", "1e999", "9" * 5000, "[" * 3000, "🦆", "\x00", "<|im_end|>", "true", ":", ","]
)  # fmt: skip
GARBAGE = st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=12).map("".join)


@pytest.mark.slow
@given(texts=st.lists(GARBAGE, min_size=50, max_size=50))
@example(texts=['<tool_call>{"name": "\\ud800", "arguments": {}}'] * 50)
@examples(max_examples=MANY)
@BY_NIGHT
def test_ten_thousand_malformed_calls_are_read_or_refused(texts: list[str]) -> None:
    """Whatever is written, each call comes back whole: a name that can be stored, or an error that says why."""
    for syntax in (JsonSyntax("<tool_call>"), JsonSyntax("", arguments_key="parameters")):
        for text in texts:
            for call in syntax.parse_calls(text):
                (call.name + call.arguments + call.output).encode()
                assert bool(call.name) != call.error
                assert not call.error or "could not be read" in call.output


@pytest.mark.parametrize("arguments", ['{"x": "\\ud800"}', {"x": "\ud800"}])
def test_half_a_character_is_none_however_it_is_written(arguments: object) -> None:
    assert "half a character" in str(build_tool_call("lookup", arguments))
