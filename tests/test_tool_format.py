"""How models write calls and are shown results: read off their chat templates, and never a crash."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from marft.engines.tool_format import Syntax, ToolFormat
from marft.types import Tool, ToolCall
from tests import templates

ADD = ToolCall("add", '{"a": 1, "b": 2}', output="3")
SUB = ToolCall("sub", '{"a": 1}', output="not <|im_end|> done")


def speaks(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


def format_of(tokenizer: PreTrainedTokenizerBase, template: str) -> ToolFormat:
    other = speaks(tokenizer, template)
    assert isinstance(other.eos_token_id, int)
    return ToolFormat.of(other, {}, (other.eos_token_id,))


def turn(format_: ToolFormat, text: str, ended: bool = True) -> np.ndarray:
    ids = format_.tokenizer.encode(text, add_special_tokens=False)
    return np.array([*ids, *format_.stop_ids[: int(ended)]], np.int32)


@pytest.mark.parametrize(
    ("template", "syntax", "text"),
    [
        (templates.HERMES, Syntax("<tool_call>", "name", "arguments"), "Well.\n<tool_call>\n{call}\n</tool_call>"),
        (templates.BARE, Syntax("", "name", "parameters"), ' {"name": "add", "parameters": {"a": 1, "b": 2}}'),
        (templates.LIST, Syntax("[TOOL_CALLS]", "name", "arguments"), "[TOOL_CALLS] [{call}]"),
        (
            templates.THINKS,
            Syntax("<tool_call>", "name", "arguments"),
            "<think>\n</think>\n<tool_call>{call}</tool_call>",
        ),
        (templates.THOUGHTLESS, Syntax("<tool_call>", "name", "arguments"), "<tool_call>{call}</tool_call>"),
    ],
)
def test_the_format_is_read_off_the_template(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str, syntax: Syntax, text: str
) -> None:
    found = format_of(tiny_tokenizer, template)
    assert found.syntax == syntax
    said = text.replace("{call}", '{"name": "add", "arguments": {"a": 1, "b": 2}}')
    assert found.read(turn(found, said), ()) == [ToolCall("add", '{"a": 1, "b": 2}')]
    assert found.read(turn(found, "The answer is 3."), ()) == []


def test_several_calls_in_one_turn_come_in_order(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    found = format_of(tiny_tokenizer, templates.HERMES)
    one, two = '{"name": "a", "arguments": {}}', '{"name": "b", "arguments": {"x": [1]}}'
    calls = found.read(turn(found, f"<tool_call>{one}</tool_call> and <tool_call>{two}</tool_call>"), ())
    assert [(call.name, call.arguments) for call in calls] == [("a", "{}"), ("b", '{"x": [1]}')]
    listed = format_of(tiny_tokenizer, templates.LIST)
    assert [c.name for c in listed.read(turn(listed, f"[TOOL_CALLS][{one}, {two}]"), ())] == ["a", "b"]


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
        return list(found.tokenizer.apply_chat_template(messages, add_generation_prompt=begin, return_dict=False))

    whole, before = ids([*chat, answer], True), ids(chat, False)
    last = max(place for place, token in enumerate(before) if token in found.stop_ids)
    assert found.response([ADD], found.stop_ids[0]).tolist() == whole[last + 1 :]
    assert found.response([ADD]).tolist() == whole[last:]


def test_what_a_tool_says_never_becomes_a_control_token(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    found = format_of(tiny_tokenizer, templates.HERMES)
    plain, evil = found.response([ADD]), found.response([SUB])
    stops = set(found.stop_ids)
    assert sum(int(t) in stops for t in evil) == sum(int(t) in stops for t in plain)
    assert "not <|im_end|> done" in str(found.tokenizer.decode(evil.tolist()))


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "leaves tools out"),
        (templates.NO_ANSWERS, "cannot render tools and their answers"),
        (templates.TAGS, "does not write calls as JSON"),
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
    other.response_template = {
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
    assert isinstance(other.eos_token_id, int)
    found = ToolFormat.of(other, {}, (other.eos_token_id,))
    assert found.syntax is None
    said = turn(found, "Hm.<tool_call>\n<function=add><parameter=a>1</parameter></function>\n</tool_call>")
    tools = [Tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})]
    assert found.read(said, tools) == [ToolCall("add", '{"a": 1}')]
    assert found.read(turn(found, "Just text."), tools) == []
    (broken,) = found.read(turn(found, "<tool_call>\n<function=><parameter=a>"), tools)
    assert broken.error
    assert "could not be read" in broken.output


def test_a_marker_inside_the_arguments_is_part_of_them() -> None:
    inner = '{"name": "python", "arguments": {"code": "print(\'<tool_call>{}\')"}}'
    assert [c.name for c in Syntax("<tool_call>", "name", "arguments").read(f"<tool_call>{inner} then")] == ["python"]


def test_an_answer_that_is_json_is_no_call() -> None:
    assert Syntax("", "name", "parameters").read('{"name": "Ann", "age": 3}') == []


@pytest.mark.parametrize("inside", ['"\\ud800"', "[" * 300 + "]" * 300, "[" * 900 + "]" * 900, '"\\u0000"', "NaN"])
@pytest.mark.parametrize("template", [templates.HERMES, templates.BARE, templates.LIST])
def test_whatever_the_arguments_hold_an_answer_can_be_appended(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str, inside: str
) -> None:
    found = format_of(tiny_tokenizer, template)
    assert found.syntax is not None
    said = f'{found.syntax.opening}{{"name": "add", "{found.syntax.arguments}": {{"a": {inside}}}}}'
    calls = found.syntax.read(said)
    assert len(calls) == 1
    (calls[0].arguments + calls[0].output).encode()
    assert len(found.response(calls)) > 0


WORDS = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": ', '"add"', ', "arguments": ', "{", "}", "[", "]", '"', "\\ud800", "\\",
     "null", "NaN", "1e999", "9" * 5000, "[" * 3000, "🦆", "\x00", "<|im_end|>", "true", ":", ","]
)  # fmt: skip
GARBAGE = st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=12).map("".join)


@pytest.mark.slow
@given(texts=st.lists(GARBAGE, min_size=50, max_size=50))
@example(texts=['<tool_call>{"name": "\\ud800", "arguments": {}}'] * 50)
@examples(max_examples=200)
def test_ten_thousand_malformed_calls_are_read_or_refused(texts: list[str]) -> None:
    """Whatever is written, each call comes back whole: a name that can be stored, or an error that says why."""
    for syntax in (Syntax("<tool_call>", "name", "arguments"), Syntax("", "name", "parameters")):
        for text in texts:
            for call in syntax.read(text):
                (call.name + call.arguments + call.output).encode()
                assert bool(call.name) != call.error
                assert not call.error or "could not be read" in call.output
