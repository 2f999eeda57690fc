"""A conversation as a tree of segments: what was in context is what the ids of a path are, and each turn is sampled once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.conversation import Conversation, Node
from marft.agents.prompt_messages import ChatMessage, InexactContinuation
from marft.common.types import TokenIds

BEGIN, END = ord(">"), ord(";")


def ids_of(text: str) -> TokenIds:
    return np.array([ord(character) for character in text], np.int32)


@dataclass(frozen=True)
class Letters:
    """A template in which a token is a letter. What stands in brackets is a thought, which it may drop later."""

    drops: bool = False
    never: bool = False

    def tokenize_prompt(self, messages: Sequence[ChatMessage]) -> TokenIds:
        shown = [self._shown(message, message is messages[-1]) for message in messages]
        return ids_of("".join(shown) + chr(BEGIN))

    def continue_chat(
        self, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage]
    ) -> TokenIds | InexactContinuation:
        if self.never:
            return InexactContinuation("never", always=True)
        before = messages[-1]
        if self._shown(before, True) != self._shown(before, False):
            return InexactContinuation("drops a thought")
        return ids_of("".join(self._shown(message, message is new[-1]) for message in new) + chr(BEGIN))

    def _shown(self, message: ChatMessage, last: bool) -> str:
        text = message["content"]
        if self.drops and not last and message["role"] == "assistant":
            text = text.partition(")")[2] or text
        return f"{message['role'][0]}:{text}{chr(END)}"


def user(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


def says(text: str) -> ChatMessage:
    return {"role": "assistant", "content": text}


def sampled(text: str) -> TokenIds:
    """A turn as it was sampled: in other tokens than the template would write it in."""
    return ids_of(text.upper() + chr(END))


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def path(node: Node) -> list[Node]:
    return [*(path(node.parent) if node.parent else ()), node]


def text_of(ids: TokenIds) -> str:
    return "".join(map(chr, ids))


def spoken(template: Letters, *turns: tuple[str, str]) -> tuple[Conversation, Node]:
    """A conversation of these questions and answers, and its last turn."""
    record = Conversation(template)
    node = record.root
    for number, (question, answer) in enumerate(turns):
        node = record.add_turn(
            record.add_messages([user(question)], node), [says(answer)], sampled(answer), str(number)
        )
    return record, node


def test_what_is_new_is_appended_to_the_ids_that_were_sampled() -> None:
    record, node = spoken(Letters(), ("a", "b"), ("c", "d"))
    assert text_of(record.add_messages([user("e")], node).context) == "u:a;>B;u:c;>D;u:e;>"
    assert [n.restart_reason for n in nodes(record.root)] == [""] * 6


def test_a_template_that_drops_a_thought_restarts_at_the_deepest_turn_that_it_leaves() -> None:
    record, node = spoken(Letters(drops=True), ("a", "b"), ("c", "(hm)d"))
    told = record.add_messages([user("e")], node)
    assert text_of(told.context) == "u:a;>B;u:c;a:d;u:e;>"
    assert told.restart_reason == "drops a thought"
    assert told.previous.action_id == "0"
    later = record.add_messages([user("f")], record.add_turn(told, [says("g")], sampled("g"), "2"))
    assert text_of(later.context) == "u:a;>B;u:c;a:d;u:e;>G;u:f;>"
    assert not later.restart_reason


def test_a_template_that_never_continues_begins_anew_at_once() -> None:
    asked: list[TokenIds] = []

    class Counted(Letters):
        def continue_chat(self, ids: TokenIds, *rest: Any) -> TokenIds | InexactContinuation:
            asked.append(ids)
            return super().continue_chat(ids, *rest)

    record, node = spoken(Letters(), ("a", "b"), ("c", "d"))
    record.template = Counted(never=True)
    told = record.add_messages([user("e")], node)
    assert record.add_messages([user("e")], node) is told
    assert len(asked) == 2
    assert text_of(told.context) == "u:a;a:b;u:c;a:d;u:e;>"
    assert told.previous is record.root


def test_the_same_question_again_is_sampled_from_the_same_ids_and_nothing_is_rendered() -> None:
    record, node = spoken(Letters(), ("a", "b"))
    told = record.add_messages([user("c")], node)
    record.template = cast("Letters", None)
    assert record.add_messages([user("c")], node) is told
    assert node.children == [told]


def test_of_several_reasons_to_begin_anew_the_first_is_told() -> None:
    class Drops(Letters):
        def continue_chat(
            self, ids: TokenIds, messages: Sequence[ChatMessage], *_: Any
        ) -> TokenIds | InexactContinuation:
            return InexactContinuation(f"drops turn {messages[-1]['content']}")

    record, node = spoken(Letters(), ("a", "b"), ("c", "d"))
    record.template = Drops()
    assert record.add_messages([user("e")], node).restart_reason == "drops turn d"


WORDS = st.text(alphabet="ab()", max_size=3)
ASKS = st.lists(
    st.tuples(st.integers(0, 99), WORDS, WORDS), min_size=1, max_size=12
)  # which turn it goes on from, what is asked, what is said


@pytest.mark.slow
@given(asks=ASKS, drops=st.booleans(), never=st.booleans())
def test_each_sampled_token_is_in_one_turn_and_a_path_is_what_was_in_context(
    asks: list[tuple[int, str, str]], drops: bool, never: bool
) -> None:
    record = Conversation(Letters(drops, never))
    turns, engine = [record.root], dict[str, tuple[TokenIds, TokenIds]]()
    for number, (place, question, answer) in enumerate(asks):
        node = turns[place % len(turns)]
        told = record.add_messages([user(question)], node)
        assert told.conversation == (*node.conversation, user(question))
        turn = record.add_turn(told, [says(answer)], sampled(answer + str(number)), str(number))
        engine[str(number)] = told.context, turn.ids
        turns.append(turn)
    everything = list(nodes(record.root))
    once = [node for node in everything if node.is_sampled]
    assert sorted(node.action_id for node in once) == sorted(engine)
    for node in once:
        prompt, tokens = engine[node.action_id]
        assert node.ids is tokens
        assert np.array_equal(node.context, np.concatenate([prompt, tokens]))
    for node in everything:
        assert np.array_equal(node.context, np.concatenate([part.ids for part in path(node)]))
        assert not (node.restart_reason and node.action_id)


def test_a_chat_that_was_rendered_anew_stands_as_it_was_rendered_and_is_gone_on_from() -> None:
    """By its ids where they are known (a template may show the date), else by the template."""
    record, _ = spoken(Letters(), ("a", "b"))
    chat = [user("a"), says("call"), user("answer")]
    told = record.add_rendered(chat, "it was rewritten", ids_of("as it was>"))
    assert (text_of(told.context), told.restart_reason) == ("as it was>", "it was rewritten")
    assert record.add_rendered(chat, "again") is told
    turn = record.add_turn(told, [says("d")], sampled("d"), "1")
    assert text_of(record.add_messages([user("e")], turn).context) == "as it was>D;u:e;>"
    assert text_of(record.add_rendered([user("x")], "it was rewritten").context) == "u:x;>"
