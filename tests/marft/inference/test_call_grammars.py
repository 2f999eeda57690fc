"""Calls that are forced are written as each model's own template writes them, and read back as calls."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="needs grammars: pip install 'marft[grammar]'")

from marft.agents.chat import Chat, Constraint
from marft.common.token_data import Grammar
from marft.common.types import Tool, ToolCall
from marft.config.models import ModelSettings
from marft.inference.call_grammar import CallFormat, build_grammar
from marft.inference.chat_messages import ChatFormat
from marft.inference.grammar_masking import GrammarCompiler
from marft.inference.renderer import ChatRenderer
from marft.models.tokenizer_format import load_tokenizer
from tests import chat_families, templates, tool_families
from tests.marft.inference.test_messages import format_of
from tests.nights import some

ADD = Tool("add", "Add.", {
    "type": "object", "properties": {"a": {"$ref": "#/$defs/digit"}}, "required": ["a"], "additionalProperties": False,
    "$defs": {"digit": {"type": "integer", "minimum": 1, "maximum": 9}},
})  # fmt: skip
SEEK = Tool("seek", "Seek.", {"type": "object", "properties": {}, "additionalProperties": False})
JSON = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
ASK: Any = ({"role": "user", "content": "1 + 2?"},)
OURS = {
    "hermes": templates.HERMES,
    "bare": templates.BARE,
    "list": templates.LIST,
    "thoughtless": templates.THOUGHTLESS,
}


@cache
def named(name: str) -> ChatFormat:
    if name in OURS:
        return format_of(load_tokenizer(ModelSettings(path="tiny")), OURS[name])
    if name in chat_families.FAMILIES:
        return chat_families.format_of(name)
    format = tool_families.chat_format(name)
    return format or chat_families.format_of("phi3")


def writes_json(name: str) -> bool:
    try:
        CallFormat.from_format(named(name))
    except ValueError:
        return False
    return True


# with reasoning that the prompt begins, no answer can be forced
NATIVE = [name for name, family in tool_families.FAMILIES.items() if not family.begun]
KNOWN = [*OURS, *(name for name in [*chat_families.FAMILIES, *NATIVE] if writes_json(name))]


def walked(format: ChatFormat, grammar: Grammar, seed: int, enough: int = 400) -> np.ndarray:
    """Tokens that the grammar allows for, drawn evenly, up to the end of the turn."""
    grammars, random = GrammarCompiler.for_tokenizer(format.tokenizer, format.stop_ids), np.random.default_rng(seed)
    matcher, tokens = grammars.new_matcher(grammar), list[int]()
    while not tokens or tokens[-1] != format.stop_ids[0]:
        ids = np.flatnonzero(np.unpackbits(grammars.next_token_masks([matcher])[0], bitorder="little"))
        end = len(tokens) > enough and format.stop_ids[0] in ids
        tokens.append(format.stop_ids[0] if end else int(random.choice(ids)))
        assert matcher.consume_token(tokens[-1]), matcher.get_error()
    return np.array(tokens, np.int32)


def calls(format: ChatFormat, chat: Chat, seed: int) -> tuple[list[ToolCall], str]:
    assert chat.constraint
    tokens = walked(format, build_grammar(format, chat, chat.constraint), seed)
    renderer = ChatRenderer({"p": format})
    text = str(format.tokenizer.decode(tokens[:-1].tolist()))
    return list(renderer.calls("p", tokens, chat.tools)), text


def test_calls_of_most_families_can_be_forced() -> None:
    assert {"qwen3", "llama3.2", "mistral v0.3", "Qwen3-Coder", "Kimi K2", "DeepSeek 3.2", "Seed-OSS"} <= set(KNOWN)


@pytest.mark.parametrize("name", some(KNOWN, of=2))
class TestForced:
    def test_some_tool_is_called_with_arguments_that_fit(self, name: str) -> None:
        names = set()
        for seed in range(6):
            found, text = calls(named(name), Chat(ASK, (ADD, SEEK), constraint=Constraint("call")), seed)
            assert found, text
            for call in found:
                assert not call.error, text
                given = json.loads(call.arguments)
                assert (call.name == "add" and set(given) == {"a"} and 1 <= given["a"] <= 9) or (call.name, given) == (
                    "seek",
                    {},
                )
            names |= {call.name for call in found}
        assert names == {"add", "seek"}

    def test_a_tool_that_is_named_and_no_other(self, name: str) -> None:
        for seed in range(4):
            found, _ = calls(named(name), Chat(ASK, (ADD, SEEK), constraint=Constraint("call", "add")), seed)
            assert {call.name for call in found} == {"add"}

    def test_one_call_where_parallel_ones_are_off(self, name: str) -> None:
        for seed in range(4):
            found, _ = calls(
                named(name), Chat(ASK, (ADD,), constraint=Constraint("call", allow_parallel_calls=False)), seed
            )
            assert len(found) == 1

    def test_json_or_a_call_where_tools_may_be_used(self, name: str) -> None:
        kinds = set()
        for seed in range(12):
            found, text = calls(named(name), Chat(ASK, (ADD,), constraint=Constraint("json", schema=JSON)), seed)
            kinds.add(bool(found))
            assert found or set(json.loads(text)) == {"ok"}
        assert kinds == {True, False} or name in ("bare", "llama3.2", "Llama 3 (JSON)")


@pytest.mark.parametrize("name", ["hermes", "list", "qwen3", "mistral v0.3", "Qwen3-Coder", "DeepSeek 3.1", "Seed-OSS"])
def test_several_calls_are_made_where_the_template_shows_several(name: str) -> None:
    counts = {len(calls(named(name), Chat(ASK, (ADD,), constraint=Constraint("call")), seed)[0]) for seed in range(12)}
    assert 1 in counts
    assert max(counts) > 1


def test_a_call_begins_with_the_control_token_of_its_template() -> None:
    format = named("qwen3")
    token = format.tokenizer.convert_tokens_to_ids("<tool_call>")
    for seed in range(3):
        assert constraint_tokens(format, seed)[0] == token


def constraint_tokens(format: ChatFormat, seed: int) -> np.ndarray:
    return walked(format, build_grammar(format, Chat(ASK, (ADD,)), Constraint("call")), seed)


class TestRefused:
    def test_a_template_that_writes_no_json(self) -> None:
        others = [name for name in chat_families.FAMILIES if name not in KNOWN]
        for name in others:
            with pytest.raises(ValueError, match="none can be forced"):
                build_grammar(named(name), Chat(ASK, (ADD,)), Constraint("call"))

    def test_a_model_that_is_elsewhere_and_one_whose_engine_cannot(self) -> None:
        format = replace(named("hermes"), grammar_error="engine 'x' cannot")
        with pytest.raises(ValueError, match="engine 'x' cannot"):
            ChatRenderer({"p": format}).grammar("p", Chat(ASK, constraint=Constraint("json")))

    def test_a_template_that_begins_with_a_thought(self) -> None:
        format = format_of(
            load_tokenizer(ModelSettings(path="tiny")),
            templates.HERMES + "{% if add_generation_prompt %}<think>{% endif %}",
        )
        with pytest.raises(ValueError, match="begins every turn with a thought"):
            ChatRenderer({"p": format}).grammar("p", Chat(ASK, constraint=Constraint("json")))

    def test_arguments_that_cannot_be_held(self) -> None:
        tool = Tool("add", "", {"type": "object", "properties": {"a": {"not": {}}}})
        with pytest.raises(ValueError, match="not"):
            ChatRenderer({"p": named("hermes")}).grammar("p", Chat(ASK, (tool,), constraint=Constraint("call")))
