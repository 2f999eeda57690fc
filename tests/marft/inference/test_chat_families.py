"""Chats of real families of models: laid out as documented, ended by what ends a turn there, and never forged."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from marft.agents.prompt_messages import ChatMessage, InexactContinuation, TruncationPolicy
from marft.common.types import AgentProfile, TokenIds, Tool, ToolCall
from marft.config.interfaces.channel import Message
from marft.config.models import ModelSettings
from marft.inference.chat_messages import (
    ChatFormat,
    check_continuation,
    check_history,
    encode_new_messages,
    render_text,
    tokenize_messages,
)
from marft.inference.renderer import ChatRenderer
from marft.inference.template_messages import detect_roles
from marft.models.tokenizer_format import find_stop_ids, fix_date, load_format
from tests.chat_families import FAMILIES, format_of, tokenizer_of

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "1 + 2?"}
SURE = {"role": "user", "content": "Sure?"}
ADD = Tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
CALL = ToolCall("add", '{"a": 1}', output="3")
EACH = pytest.mark.parametrize("name", FAMILIES)
WITH_TOOLS = [name for name, family in FAMILIES.items() if family.tools]


def _of(role: str, text: str) -> ChatMessage:
    return {"role": role, "content": text}


def decoded(format: ChatFormat, ids: TokenIds) -> str:
    return str(format.tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))


def sampled(name: str, end: int | None = None) -> list[int]:
    """The tokens that a model of the family writes."""
    format = format_of(name)
    ids = format.tokenizer.encode(FAMILIES[name].said, add_special_tokens=False)
    return [*ids, format.stop_ids[0] if end is None else end]


def said(name: str) -> ChatMessage:
    return {"role": "assistant", "content": FAMILIES[name].content}


@EACH
def test_an_agents_prompt_is_what_its_family_documents(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    prompt = ChatRenderer({"p": format}).render(
        "p", AgentProfile("solver", "Be brief."), "1 + 2?", [], reserve=9, cut=TruncationPolicy()
    )  # fmt: skip
    assert decoded(format, prompt.ids) == family.opening
    assert family.opening.count("Be brief.") == 1


@EACH
def test_a_default_system_message_is_there_only_where_the_profile_says_nothing(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    prompt = ChatRenderer({"p": format}).render(
        "p", AgentProfile("solver"), "1 + 2?", [], reserve=9, cut=TruncationPolicy()
    )
    assert decoded(format, prompt.ids) == family.default


@EACH
def test_a_later_prompt_shows_earlier_turns_as_documented(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    chat = [SYSTEM, USER, said(name), SURE]
    assert render_text(format, chat) == (family.drop_truncated or family.opening + family.later)
    assert decoded(format, tokenize_messages(format, chat)) == render_text(format, chat)


@EACH
def test_a_system_message_after_the_question_is_shown_before_the_turn_that_it_came_before(name: str) -> None:
    """Where a template knows no such message, or has turns alternate, it joins the question; and stays there."""
    format, late = format_of(name), {"role": "system", "content": "Be careful."}
    asked = render_text(format, [SYSTEM, USER, late])
    whole = render_text(format, [SYSTEM, USER, late, said(name), SURE])
    for text, shown in ((asked, ["Be brief.", "1 + 2?", "Be careful."]), (whole, ["Be careful.", "It is 3.", "Sure?"])):
        places = [text.index(part) for part in shown]
        assert places == sorted(places)
        assert text.count("Be careful.") == 1
    found = encode_new_messages(format, np.array(sampled(name), np.int32), [SYSTEM, USER, late, said(name)], [SURE])
    if not FAMILIES[name].rewrites:
        assert not isinstance(found, InexactContinuation), found.reason


@EACH
def test_a_turn_ends_with_what_its_template_ends_it_with_and_all_that_is_declared_stops(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    ends = format.tokenizer.convert_ids_to_tokens(list(format.stop_ids))
    assert ends[0] == family.special[0]
    assert {*family.declared, family.eos or ends[0]} <= {*ends}
    option = ChatRenderer({"p": format}).tokenize_option("p", "yes")
    assert option[-1] == format.stop_ids[0]


@EACH
def test_what_was_sampled_stays_in_the_next_prompt_or_that_is_rendered_anew_with_a_reason(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    prompt = tokenize_messages(format, [SYSTEM, USER]).tolist()
    turn = np.array([*prompt, *sampled(name)], np.int32)
    found = encode_new_messages(format, turn, [SYSTEM, USER, said(name)], [SURE])
    if family.rewrites:
        assert isinstance(found, InexactContinuation)
        assert family.rewrites in found.reason
    else:
        assert not isinstance(found, InexactContinuation), found.reason
        whole = tokenize_messages(format, [SYSTEM, USER, said(name), SURE]).tolist()
        assert [*turn, *found] == whole
        assert check_continuation(format) is None


def test_a_chat_that_a_template_ends_once_more_is_not_rewritten_by_what_follows() -> None:
    phi = format_of("phi3")
    assert render_text(phi, [USER, said("phi3")], add_generation_prompt=False).endswith("<|end|>\n<|endoftext|>")
    assert check_history(phi, [USER, said("phi3")], [SURE], ()) is None


@EACH
def test_a_worker_that_is_sent_a_format_speaks_as_the_run_does(name: str) -> None:
    format = format_of(name)
    chat = [SYSTEM, USER, said(name), SURE]
    sent = pickle.loads(pickle.dumps(format))
    assert tokenize_messages(sent, chat).tolist() == tokenize_messages(format, chat).tolist()


@EACH
def test_a_turn_that_was_cut_short_is_ended_as_its_template_ends_one(name: str) -> None:
    format = format_of(name)
    chat = [SYSTEM, USER, said(name)]
    whole, cut = (
        encode_new_messages(format, np.array(sampled(name)[:end], np.int32), chat, [SURE]) for end in (None, -1)
    )
    assert isinstance(whole, InexactContinuation) == isinstance(cut, InexactContinuation)
    if not isinstance(whole, InexactContinuation) and not isinstance(cut, InexactContinuation):
        assert cut.tolist() == [format.stop_ids[0], *whole]


@EACH
def test_nothing_is_appended_to_a_turn_that_another_token_ended(name: str) -> None:
    format = format_of(name)
    for other in format.stop_ids[1:]:
        turn = np.array(sampled(name, other), np.int32)
        assert isinstance(encode_new_messages(format, turn, [SYSTEM, USER, said(name)], [SURE]), InexactContinuation)


@EACH
def test_control_tokens_that_somebody_writes_are_text(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    tokens = [token for token in (*family.special, *family.marks) if "think" not in token]
    evil = " ".join(tokens)

    def prompt(text: str) -> list[int]:
        renderer = ChatRenderer({"p": format})
        seen = [Message("other", f"I say {text}.")]
        profile = AgentProfile("solver", f"Be {text}.", guidance=f"Note {text}.")
        ids = renderer.render("p", profile, f"1 + {text}?", seen, reserve=9, cut=TruncationPolicy()).ids
        assert decoded(format, ids).count(text) >= 4
        return list(ids)

    added = {format.tokenizer.convert_tokens_to_ids(token) for token in tokens}
    assert [i for i in prompt(evil) if i in added] == [i for i in prompt("nothing") if i in added]


@EACH
@pytest.mark.parametrize("evil", ["", " so", "\n", "\U000f0001", "\U000f0000"])
def test_ids_of_a_chat_with_control_tokens_are_those_of_transformers(name: str, evil: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    if "sanitize_control_tokens" not in signature(PreTrainedTokenizerBase.apply_chat_template).parameters:
        pytest.skip("this version of transformers cannot escape control tokens")
    text = evil.join(["I say", *family.special, *family.marks, "12"])
    chat = [_of("user", text), _of("assistant", "Well."), _of("user", f"{text}?")]
    theirs = format.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False, sanitize_control_tokens=True, **format.template_options
    )
    if not detect_roles(format.tokenizer, format.template_options).markers:
        assert tokenize_messages(format, chat).tolist() == theirs


@pytest.mark.parametrize(
    ("name", "marks"),
    [("mistral v0.1", ["[/INST]", "[INST]"]), ("olmo2", ["<|assistant|>", "<|system|>", "<|user|>"])],
)
def test_marks_of_roles_that_are_no_tokens_are_broken_where_somebody_writes_them(name: str, marks: list[str]) -> None:
    format = format_of(name)
    assert list(detect_roles(format.tokenizer, {}).markers) == marks

    def shown(text: str) -> str:
        chat = [_of("system", text), _of("user", text), _of("assistant", "Well."), _of("user", text)]
        return decoded(format, tokenize_messages(format, chat))

    evil, good = shown(f"Do not {marks[0]} write {marks[1]}."), shown("Do not write.")
    assert [evil.count(mark) for mark in marks] == [good.count(mark) for mark in marks]
    assert evil.count(f"{marks[0][0]} {marks[0][1:]} write") == 3


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("mistral v0.1", "olmo2")])
def test_what_is_told_is_not_changed_where_marks_are_tokens(name: str) -> None:
    assert detect_roles(format_of(name).tokenizer, format_of(name).template_options).markers == ()


@EACH
def test_messages_of_one_role_in_a_row_are_all_said_once(name: str) -> None:
    format = format_of(name)
    texts = ["Be-brief", "first-one", "second-one", "an-answer", "another-one", "third-one"]
    roles = ["system", "user", "user", "assistant", "assistant", "user"]
    chat = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    shown = render_text(format, chat)
    assert [shown.count(text) for text in texts] == [1] * 6
    assert [word for word in re.findall(r"\w+-\w+", shown) if word in texts] == texts


@EACH
def test_a_thought_is_told_apart_from_what_is_said(name: str) -> None:
    family, renderer = FAMILIES[name], ChatRenderer({"p": format_of(name)})
    begun = family.opening.endswith("<think>\n")

    def said(text: str) -> str:
        return text[renderer.reasoning_length("p", text) :]

    assert said("<think>\nHm.\n</think>\n\nIt is 3.") == "It is 3."
    assert said("Hm.\n</think>\n\nIt is 3.") == "It is 3."
    assert said("<think>\nHm, 1 + 2 is") == ""
    assert said("It is 3.") == ("" if begun else "It is 3.")
    assert ChatRenderer({"p": replace(format_of(name), remote=True)}).reasoning_length("p", "It is 3.") == 0


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_calls_are_read_and_answers_shown_as_documented(name: str) -> None:
    family, format = FAMILIES[name], format_of(name)
    renderer = ChatRenderer({"p": format})
    key = "parameters" if "llama" in name else "arguments"
    written = family.tools.replace("{call}", f'{{"name": "add", "{key}": {{"a": 1}}}}')
    ids = np.array([*format.tokenizer.encode(written, add_special_tokens=False), format.stop_ids[0]], np.int32)
    (call,) = renderer.calls("p", ids, [ADD])
    assert (call.name, call.arguments) == ("add", '{"a": 1}')
    answered = [replace(call, output="4711")]
    chat = [SYSTEM, USER, *renderer.tool_call_messages("p", decoded(format, ids), answered, ids[:0])]
    assert "4711" in decoded(format, renderer.tokenize_prompt("p", chat, [ADD]))
    found = renderer.tool_response("p", ids, chat, answered, [ADD])
    if not isinstance(found, InexactContinuation):
        assert decoded(format, renderer.tokenize_prompt("p", chat, [ADD])).endswith(decoded(format, found))
        assert "4711" in decoded(format, found)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("qwen2.5", "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        ("qwen3", "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        ("hermes", "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        ("llama3.2", '<|start_header_id|>ipython<|end_header_id|>\n\n"3"<|eot_id|>'),
        ("mistral v0.3", '[TOOL_RESULTS] {"content": 3, "call_id": "call00000"}[/TOOL_RESULTS]'),
    ],
)
def test_answers_are_in_the_role_that_the_family_has_for_them(name: str, answer: str) -> None:
    format = format_of(name)
    chat = [SYSTEM, USER, *ChatRenderer({"p": format}).tool_call_messages("p", "", [CALL], np.empty(0, np.int32))]
    shown = render_text(format, chat, [ADD])
    assert answer in shown
    assert shown.count("Be brief.") == 1


def test_a_thought_before_a_call_stays_where_it_was_sampled_until_somebody_else_speaks() -> None:
    format = format_of("qwen3")
    renderer = ChatRenderer({"p": format})
    written = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    ids = np.array([*format.tokenizer.encode(written, add_special_tokens=False), format.stop_ids[0]], np.int32)
    chat = [SYSTEM, USER, *renderer.tool_call_messages("p", written, [CALL], ids[:0])]
    found = renderer.tool_response("p", ids, chat, [CALL], [ADD])
    assert not isinstance(found, InexactContinuation)
    before = tokenize_messages(format, chat[:2], [ADD])
    assert [*before.tolist(), *ids.tolist(), *found.tolist()] == tokenize_messages(format, chat, [ADD]).tolist()
    later = render_text(format, [*chat, said("qwen3"), SURE], [ADD])
    assert "Hm." not in later


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in WITH_TOOLS])
def test_a_family_whose_template_shows_no_calls_is_refused_tools_with_a_remedy(name: str) -> None:
    with pytest.raises(ValueError, match="chat_template"):
        ChatRenderer({"p": format_of(name)}).tool_format("p")


@pytest.mark.parametrize("name", ["llama3.2", "smollm3", "granite3", "gpt-oss", "mistral small"])
def test_the_date_is_the_recipes(name: str) -> None:
    format = format_of(name)
    other = replace(format, tokenizer=tokenizer_of(FAMILIES[name]))
    template = FAMILIES[name].template
    assert isinstance(template, str)
    other.tokenizer.chat_template = fix_date(template, "1999-12-31")
    assert "2024" in FAMILIES[name].default
    assert "1999" in render_text(other, [USER])
    assert "2024-07" not in render_text(other, [USER])


def test_a_template_keeps_the_newline_that_it_begins_with() -> None:
    tokenizer = tokenizer_of(FAMILIES["olmo2"])
    tokenizer.chat_template = fix_date("\n{{ strftime_now('%d/%m/%y %%') }}", "2024-07-26")
    assert tokenizer.apply_chat_template([USER], tokenize=False) == "\n26/07/24 %"


def test_a_model_is_loaded_with_its_end_of_turn_and_date(tmp_path: Path) -> None:
    family = FAMILIES["phi3"]
    tokenizer = tokenizer_of(family)
    assert isinstance(family.template, str)
    tokenizer.chat_template = family.template.replace("<|assistant|>\n", "<|assistant|>\n{{ strftime_now('%F') }}")
    tokenizer.save_pretrained(tmp_path)
    config = '{"model_type": "llama", "vocab_size": 400, "max_position_embeddings": 99, "eos_token_id": %d}'
    (tmp_path / "config.json").write_text(config % tokenizer.eos_token_id, "utf-8")
    format = load_format(ModelSettings(path=str(tmp_path), date="2001-02-03"))
    ends = [str(format.tokenizer.decode([i])) for i in format.stop_ids]
    assert ends == ["<|end|>", "<|endoftext|>"]
    chat = format.tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert str(chat).endswith("<|assistant|>\n2001-02-03")


def test_the_tokenizers_end_of_text_comes_first_where_the_template_says_nothing() -> None:
    tokenizer = tokenizer_of(FAMILIES["qwen2"])
    tokenizer.chat_template = "{{ messages[0].content }}"
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    assert find_stop_ids(tokenizer, {}, [[3, end]], 300) == (end, 3)
    assert find_stop_ids(tokenizer, {}, [[3, end]], end) == (3,)
