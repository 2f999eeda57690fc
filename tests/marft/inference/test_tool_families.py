"""Tool calls and reasoning in the native format of each model family: rendered, parsed whole and in streams, refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.prompt_messages import InexactContinuation, tool_call_messages
from marft.common.reasoning import split_reasoning
from marft.common.types import TokenIds, Tool, ToolCall
from marft.inference.call_syntax import Reasoning
from marft.inference.chat_messages import ChatFormat, encode_full_turn, render_text, tokenize_messages, tool_schema
from marft.inference.renderer import ChatRenderer
from marft.models.control_tokens import decode_text
from tests.nights import by_day, some
from tests.tool_families import FAMILIES, chat_format

EACH = pytest.mark.parametrize("name", FAMILIES)
OFFICIAL = [name for name, family in FAMILIES.items() if family.official]
USER = {"role": "user", "content": "1 + 2?"}
ADD = Tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def format_of(name: str) -> ChatFormat:
    format = chat_format(name)
    if format is None:
        pytest.skip("its official template comes with TRL's wheel: make templates")
    return format


def reasoned(name: str, reasoning: str, text: str) -> str:
    """The text of a turn with reasoning, as the model writes it."""
    family = FAMILIES[name]
    if not family.reasoning:
        return text
    if "channel|>" in family.reasoning[0] and family.reasoning[0].startswith("<|channel|>"):
        body = f"<|end|><|start|>assistant<|channel|>final<|message|>{text}" if text else "<|end|>"
        return f"<|channel|>analysis<|message|>{reasoning}{body}"
    begins, ends = family.reasoning
    return f"{begins}\n{reasoning}\n{ends}{family.after_reasoning}{text}"


def encoded(format: ChatFormat, text: str, ended: bool = True) -> TokenIds:
    ids = format.tokenizer.encode(text, add_special_tokens=False)
    return np.array([*ids, *format.stop_ids[: int(ended)]], np.int32)


def sampled_turn(name: str, turn: dict[str, Any], tools: Sequence[Tool]) -> TokenIds:
    """The tokens of a turn, as the template writes it after its prompt."""
    format = format_of(name)
    prompt = tokenize_messages(format, [USER], tools).tolist()
    whole = tokenize_messages(format, [USER, turn], tools, add_generation_prompt=False).tolist()
    if whole[: len(prompt)] != prompt:  # the prompt begins with an empty thought, or another one than the turn's
        rendered = render_text(format, [USER, turn], tools, add_generation_prompt=False)
        begins = render_text(format, [USER], tools, add_generation_prompt=False)
        whole, prompt = format.tokenizer.encode(rendered[len(begins) :], add_special_tokens=False), []
    ids = whole[len(prompt) :]
    ends = [place for place, token in enumerate(ids) if token in format.stop_ids]
    end = format.tokenizer.convert_tokens_to_ids(FAMILIES[name].call_end or FAMILIES[name].special[0])
    return np.array(ids[: ends[0] + 1] if ends else [*ids, end], np.int32)


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_conversation_is_what_the_official_template_renders(name: str) -> None:
    """Reasoning stands in a turn's text here, and apart for the official template."""
    family, format = FAMILIES[name], format_of(name)
    text = "" if "gpt-oss" in name else "I add."
    ours = {"role": "assistant", "content": reasoned(name, "Hm.", text)}
    official: dict[str, Any] = {"role": "assistant", "content": text}
    if family.reasoning:
        official["reasoning_content"] = "Hm."
    calls = [ToolCall("add", '{"a": 1}', output="3"), ToolCall("add", '{"a": 2}', output="4")][
        : 1 if family.single else 2
    ]
    native, *answers = tool_call_messages("", calls)
    given = {"tool_calls": native["tool_calls"]}
    for following in ([], answers):
        chat = [{"role": "system", "content": "Be brief."}, USER]
        shown = render_text(format, [*chat, {**ours, **given}, *following], [ADD], bool(following))
        expected = format.tokenizer.apply_chat_template(
            [*chat, {**official, **given}, *following],
            tools=[tool_schema(ADD)],
            tokenize=False,
            add_generation_prompt=bool(following),
            **family.options,
        )
        assert shown == expected
        assert "Hm." in shown or not family.reasoning
    ids = tokenize_messages(format, [*chat, {**ours, **given}, *answers], [ADD])
    assert str(format.tokenizer.decode(ids.tolist())) == expected


@EACH
def test_a_call_is_read_as_the_model_writes_it(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    renderer = ChatRenderer({"p": format})
    before = "Hm.</think>\n\n" if family.begun else ""
    (call,) = renderer.calls("p", encoded(format, before + family.call), [ADD])
    assert (call.name, json.loads(call.arguments), call.error) == ("add", {"a": 1}, False)
    reasoned_call = (
        reasoned(name, "Hm.", "").removeprefix(f"{family.reasoning[0]}\n" if family.begun else "") + family.call
    )
    (call,) = renderer.calls("p", encoded(format, reasoned_call), [ADD])
    assert (call.name, call.error) == ("add", False)
    assert renderer.calls("p", encoded(format, f"{before}It is 3."), [ADD]) == []


@EACH
def test_calls_inside_reasoning_are_not_made(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    if not family.reasoning or "gpt-oss" in name:
        return
    thought = reasoned(name, f"Maybe {family.call}?", "No.")
    thought = thought.removeprefix(family.reasoning[0]) if family.begun else thought
    assert ChatRenderer({"p": format}).calls("p", encoded(format, thought), [ADD]) == []


@EACH
def test_a_malformed_call_becomes_an_error_that_the_agent_sees(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    renderer = ChatRenderer({"p": format})
    for text in family.malformed.values():
        written = ("Hm.</think>" if family.begun else "") + text
        calls = renderer.calls("p", encoded(format, written), [ADD])
        assert [(call.name, call.error) for call in calls] == [("", True)], text
        assert re.match(r"this call could not be read: .{10}", calls[0].output)
        assert "{}" not in calls[0].arguments
        turn = encoded(format, written)
        chat = [USER, *renderer.tool_call_messages("p", written, calls, turn[:0])]
        shown = renderer.tool_response("p", turn, chat, calls, [ADD])
        if isinstance(shown, InexactContinuation):
            shown = renderer.tokenize_prompt("p", chat, [ADD])
        assert "could not be read" in str(format.tokenizer.decode(shown.tolist()))
        again = renderer.tokenize_prompt("p", [*chat, {"role": "assistant", "content": "Sorry."}], [ADD])
        assert calls[0].arguments[:20] in str(format.tokenizer.decode(again.tolist())).replace('\\"', '"').replace(
            "\\n", "\n"
        )


@EACH
def test_an_unknown_tool_is_still_a_call(name: str) -> None:
    """Who executes it says which tools there are."""
    family, format = FAMILIES[name], format_of(name)
    written = ("Hm.</think>" if family.begun else "") + family.call.replace("add", "subtract")
    (call,) = ChatRenderer({"p": format}).calls("p", encoded(format, written), [ADD])
    assert (call.name, call.error) == ("subtract", False)


@EACH
def test_what_comes_after_a_tools_answer_is_what_the_template_renders(name: str) -> None:
    """The sampled tokens stay, and the appended ones are the template's, reasoning included."""
    family, format = FAMILIES[name], format_of(name)
    if not family.keeps:
        return
    renderer = ChatRenderer({"p": format})
    call = ToolCall("add", '{"a": 1}', output="4711")
    native = tool_call_messages("", [call])[0]["tool_calls"]
    turn = sampled_turn(name, {"role": "assistant", "content": reasoned(name, "Hm.", ""), "tool_calls": native}, [ADD])
    written = decode_text(format.tokenizer, turn[:-1].tolist())
    chat = [USER, *renderer.tool_call_messages("p", written, [call], turn[:0])]
    appended = renderer.tool_response("p", turn, chat, [call], [ADD])
    assert not isinstance(appended, InexactContinuation), appended.reason
    prompt = renderer.tokenize_prompt("p", [USER], [ADD])
    whole = renderer.tokenize_prompt("p", chat, [ADD])
    assert "4711" in str(format.tokenizer.decode(appended.tolist()))
    assert str(format.tokenizer.decode(whole.tolist())).endswith(str(format.tokenizer.decode(appended.tolist()))[1:])
    if not family.reasoning or family.begun:
        assert [*prompt, *turn, *appended] == whole.tolist()


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
WORD = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
SCALAR = st.one_of(
    st.booleans(), st.integers(-(2**40), 2**40), TEXT.map("v{}".format), st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
)
VALUE = st.one_of(SCALAR, TEXT, st.lists(SCALAR, max_size=3), st.dictionaries(WORD, SCALAR, max_size=3))
MARK = "</think>"
CALL = st.tuples(WORD, st.dictionaries(WORD, VALUE, max_size=4))


def tools_of(calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Tool]:
    """A tool for each name, with the types of what its calls pass."""
    properties: dict[str, dict[str, Any]] = {name: {} for name, _ in calls}
    for name, arguments in calls:
        properties[name] |= {key: {"type": KINDS[type(value)]} for key, value in arguments.items()}
    return [Tool(name, "A tool.", {"type": "object", "properties": table}) for name, table in properties.items()]


def can_hold(name: str, value: object) -> bool:
    """Whether a format can tell this text from what ends it."""
    text = json.dumps(value, ensure_ascii=False)
    special = FAMILIES[name].special + FAMILIES[name].marks + FAMILIES[name].forbidden
    return not any(mark in text for mark in special)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(FAMILIES, 2))
@settings(max_examples=by_day(15, 60), deadline=None)
@given(data=st.data())
def test_what_is_rendered_is_read_back_whole_and_token_by_token(name: str, data: st.DataObject) -> None:
    family, format = FAMILIES[name], format_of(name)
    calls = data.draw(st.lists(CALL, min_size=1, max_size=1 if family.single else 3, unique_by=lambda call: call[0]))
    if not can_hold(name, calls):
        return
    quoted = data.draw(st.sampled_from(["", family.call, f"As in {family.call}\nand {family.call}.", MARK]))
    if quoted:
        calls[0][1]["quoted"] = quoted
    tools = tools_of(calls)
    thoughts = ["Hm.", "Two parts.\n\nThen more."] + ([] if family.begun else [""])
    reasoning = data.draw(st.sampled_from(thoughts)) if family.reasoning else ""
    text = (
        ""
        if family.single or family.bare
        else data.draw(st.sampled_from(["", "I look it up.", "First this:\n- and that"]))
    )
    made = [ToolCall(tool, json.dumps(arguments)) for tool, arguments in calls]
    content = reasoned(name, reasoning, text) if reasoning else text
    turn = {**tool_call_messages("", made)[0], "content": content}
    ids = sampled_turn(name, turn, tools)
    if not (family.single or family.bare) and data.draw(st.booleans()):
        ids = np.array([*ids[:-1], *encoded(format, f"\nThat is all of {MARK}.", ended=False), ids[-1]], np.int32)
    renderer = ChatRenderer({"p": format})
    parsed = renderer.calls("p", ids, tools)
    assert [(call.name, json.loads(call.arguments), call.error) for call in parsed] == [
        (*call, False) for call in calls
    ]
    check_stream(renderer, ids, tools, parsed)


def check_stream(renderer: ChatRenderer, ids: TokenIds, tools: Sequence[Tool], parsed: Sequence[ToolCall]) -> None:
    """A client that reads token by token is told the same text, and nothing of a call."""
    format = renderer.formats["p"]
    written = decode_text(format.tokenizer, ids[:-1].tolist())
    for drops in (False, True):
        size = renderer.reasoning_length("p", written) if drops else 0
        live = renderer.text_stream("p", (), drops, True)
        told = ["", ""]
        for token in ids[:-1].tolist():
            for number, new in enumerate(live.add_tokens([token])):
                told[number] += new
        content = str(renderer.tool_call_messages("p", written[size:], parsed, ids[:0])[0]["content"])
        assert content.startswith(told[1])
        for number, new in enumerate(live.finish(written[:size], content)):
            told[number] += new
        assert told == [written[:size], content]


@EACH
def test_markers_stay_in_the_text_of_a_turn(name: str) -> None:
    """What a format reward, a memory or ``marft sft`` reads holds them, special tokens or not."""
    family, format = FAMILIES[name], format_of(name)
    written = reasoned(name, "Hm.", "It is 3.")
    assert decode_text(format.tokenizer, format.tokenizer.encode(written, add_special_tokens=False)) == written
    assert decode_text(format.tokenizer, format.tokenizer.encode(family.call, add_special_tokens=False)) == family.call
    assert split_reasoning(written) == ("Hm." if family.reasoning else "", "It is 3.")
    renderer = ChatRenderer({"p": format})
    size = renderer.reasoning_length("p", written)
    assert written[size:] == "It is 3."


@EACH
def test_a_demonstration_is_encoded_as_the_model_would_sample_it(name: str) -> None:
    """As ``marft sft`` and recorded traces do, calls and reasoning included."""
    format = format_of(name)
    call = ToolCall("add", '{"a": 1}')
    turn = {**tool_call_messages("", [call])[0], "content": reasoned(name, "Hm.", "")}
    found = encode_full_turn(format, [USER], turn, [ADD], tool_call_messages("", [replace(call, output="3")])[1:])
    if isinstance(found, InexactContinuation):
        assert "otherwise than one that begins" in found.reason
        return
    (parsed,) = ChatRenderer({"p": format}).calls("p", found.ids, [ADD])
    assert (parsed.name, json.loads(parsed.arguments)) == ("add", {"a": 1})
    markers = [token for token in (*FAMILIES[name].special, *FAMILIES[name].marks) if token in FAMILIES[name].call]
    ids = [format.tokenizer.convert_tokens_to_ids(marker) for marker in markers if "CALL_ID" not in marker]
    assert sum(i in found.ids for i in ids) >= len(ids) - 1  # a recipient stands before or in the channel


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("<think>a</think><tool_call>\n<function=one>\n</function>\n</tool_call>", ["one"]),
        (
            "<tool_call>\n<function=one>\n</function>\n</tool_call> and <tool_call>\n<function=two>\n</function>",
            ["one", "two"],
        ),
        ("<function=one>\n</function>", ["one"]),
        ("<tool_call> <tool_call>\n<function=one>\n</function>", ["", "one"]),
        ("<tool_call>\n<function=one>\n<parameter=a>\n</parameter> is a tag\n</parameter>\n</function>", ["one"]),
    ],
)
def test_calls_with_text_around_them(text: str, names: list[str]) -> None:
    syntax = ChatRenderer({"p": format_of("Qwen3-Coder")}).tool_format("p").syntax
    assert syntax is not None
    assert [call.name for call in syntax.parse_calls(text, Reasoning())] == names
