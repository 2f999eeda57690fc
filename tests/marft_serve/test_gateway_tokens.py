"""What clients talk about is trained by the ids that were sampled, once each, whatever they do to their history."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.chat import ChatRefusedError
from marft.common.types import Action, Episode, Observation
from marft.config.interfaces.organization import Agents
from marft.config.models import ModelSettings
from marft.inference.chat_messages import ChatFormat, render_text, tokenize_messages
from marft.models.chat_templates import RENDER_ERRORS
from marft.models.tokenizer_format import load_tokenizer
from tests import chat_families, templates
from tests.chatting import ADD, SEEK, Parrot, Said, asked, talked
from tests.marft.inference.test_messages import format_of
from tests.nights import some

NUMBER = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 8
FORMATS = ["tiny", "hermes", "list", "drops", "rewrites", "qwen3", "llama3.2", "gemma3", "mistral v0.3"]
WORDS = ["", " ", "It is 3.", "ümläut – 汉字 🧮", "a\n\nb", "<|im_end|> as text", "12", " 12 "]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": %s}}\n</tool_call>'
SPOKEN = [
    *WORDS,
    *[CALL % 4] * 4,
    "<think>\nHm.\n</think>\n\nIt is 3.",
    CALL % 1,
    f"I add.\n{CALL % 2}\n{CALL % 3}",
    CALL % "[",
    '{"name": "add"',
]


@cache
def format_named(name: str) -> ChatFormat:
    if name in chat_families.FAMILIES:
        return replace(chat_families.format_of(name), context=100_000)
    tokenizer = load_tokenizer(ModelSettings(path="tiny"))
    template = None if name == "tiny" else getattr(templates, name.upper())
    return replace(format_of(tokenizer, template), context=100_000)


@st.composite
def spoken(draw: st.DrawFn) -> Said:
    text = draw(
        st.one_of(st.sampled_from(SPOKEN), st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8))
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return Said(pieces, draw(st.booleans()) or not text)


Deed = tuple[str, Any]
DEEDS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(WORDS)),
    st.tuples(st.just("again"), st.none()),
    st.tuples(st.just("edit"), st.integers(0, 5)),
    st.tuples(st.just("trim"), st.integers(1, 3)),
    st.tuples(st.just("swap"), st.integers(0, 5)),
    st.tuples(st.just("put in"), st.sampled_from(WORDS)),
    st.tuples(st.just("start over"), st.sampled_from(WORDS)),
    st.tuples(st.just("offer"), st.sampled_from(["add", "both", "none"])),
)


class Client:
    """A program that keeps its history as clients do, and does things to it."""

    def __init__(self, deeds: list[Deed], tools: bool = False) -> None:
        self.deeds = deeds
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
        self.tools: list[dict[str, Any]] = [ADD] if tools else []
        self.asked: list[tuple[list[dict[str, Any]], Action]] = []

    async def talk(self, _: Observation, agents: Agents) -> None:
        for kind, what in [("ask", "1 + 2?"), *self.deeds]:
            self.change(kind, what)
            fields = {"tools": self.tools} if self.tools else {}
            sent = copy.deepcopy(self.messages)
            try:
                message, reply = await asked(agents.a, sent, **fields)
            except ChatRefusedError:  # the template has no tools, or takes no such chat
                self.messages, self.tools = self.messages[:1], []
                continue
            self.asked.append((sent, reply.action))
            self.messages.append({key: value for key, value in message.items() if value is not None})
            for call in message.get("tool_calls", ()):
                json.loads(call["function"]["arguments"])
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "7 <|im_end|>"})

    def change(self, kind: str, what: Any) -> None:
        turns = [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]
        if kind == "edit" and turns:
            place = turns[what % len(turns)]
            self.messages[place] = {**self.messages[place], "content": "something else"}
        elif kind == "trim" and turns:
            self.messages = [
                self.messages[0],
                *self.drop_truncated(self.messages[turns[min(what, len(turns)) - 1] + 1 :]),
            ]
        elif kind == "swap" and len(turns) > 1:
            place = turns[what % (len(turns) - 1)]
            self.messages = [self.messages[0], *self.drop_truncated([*self.messages[place:], *self.messages[1:place]])]
        elif kind == "put in":
            self.messages.append({"role": "assistant", "content": what})
        elif kind == "start over":
            self.messages = [self.messages[0]]
        elif kind == "offer":
            self.tools = {"add": [ADD], "both": [ADD, SEEK], "none": []}[what]
        if kind == "again" and self.asked:
            self.messages = self.asked[-1][0][:-1]
        self.messages.append({"role": "user", "content": what if isinstance(what, str) else "Sure?"})

    @staticmethod
    def drop_truncated(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without answers whose calls are gone, as no API takes them."""
        kept, calls = list[dict[str, Any]](), set[str]()
        for message in messages:
            if message["role"] != "tool":
                calls = {call["id"] for call in message.get("tool_calls", ())}
            if message["role"] != "tool" or message["tool_call_id"] in calls:
                kept.append(message)
        return kept


def check(format: ChatFormat, client: Client, episode: Episode, engine: Parrot) -> None:
    assert episode.status == "terminated", episode.error
    by_id = {action.id: action for action in episode.actions}
    assert [action.id for action in episode.actions] == [action.id for _, action in client.asked]
    assert {action.key for action in episode.actions} == set(engine.sampled)  # each is a decision, once
    for action in episode.actions:
        prompt, tokens, _ = engine.sampled[action.key]
        assert np.array_equal(action.prompt, prompt.ids)
        assert np.array_equal(action.tokens, tokens)  # as sampled
        assert action.sampled_mask.all()
        assert len(action.segments) == 1
        chat = [dict(message) for message in prompt.chat]
        try:
            whole = tokenize_messages(format, chat, prompt.tools)
        except RENDER_ERRORS:
            whole = None
        if not action.continues:
            assert np.array_equal(action.prompt, whole)  # a chat that begins is rendered whole
            continue
        if action.restarted.startswith("template") and whole is not None and np.array_equal(action.prompt, whole):
            continue
        last = max(
            (by_id[name] for name in action.continues if starts(action, by_id[name])),
            key=lambda a: a.index,
            default=None,
        )
        if not action.restarted:
            assert last is by_id[action.continues[-1]]  # it goes on by the very ids
            seen = render_text(format, chat, prompt.tools)
            if seen.count("something else") == 0:
                assert str(format.tokenizer.decode(action.prompt[-20:].tolist()))[-5:] == seen[-5:]


def starts(action: Action, other: Action) -> bool:
    before = np.concatenate([other.prompt, other.tokens])
    return np.array_equal(action.prompt[: len(before)], before)


@pytest.mark.parametrize("name", some(FORMATS))
@pytest.mark.slow
@settings(max_examples=NUMBER)
@given(deeds=st.lists(DEEDS, max_size=7), data=st.data())
def test_the_ids_that_are_trained_are_those_that_were_sampled_once_each(
    name: str, deeds: list[Deed], data: st.DataObject
) -> None:
    format, client = format_named(name), Client(deeds, data.draw(st.booleans()))
    episode, engine = talked(format, lambda _: data.draw(spoken()), client.talk)
    check(format, client, episode, engine)
