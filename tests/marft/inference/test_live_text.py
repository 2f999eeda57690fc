"""What is told of a text while it is sampled stays so: pieces come together to what the whole is told as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from marft.agents.streaming import Detokenizer, TextStream, text_before
from marft.common.reasoning import StopString
from marft.common.texts import cut_at_stop, find_stop
from marft.common.types import Tool
from marft.config.models import ModelSettings
from marft.inference.chat_messages import ChatFormat
from marft.inference.detokenizer import StopStringChecker, detokenizer_factory
from marft.inference.renderer import ChatRenderer
from marft.models.control_tokens import decode_text
from marft.models.tokenizer_format import load_tokenizer
from tests import chat_families, templates
from tests.marft.inference.test_messages import format_of
from tests.nights import by_day, some

TOOLS = (Tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}}),)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
PIECES = [
    "It is 3.", "ü – 汉字 🧮", "e\u0301", " ", "\n\n", ".", " , and", "do n't", "a ' b", "ST", "STOP", "<think>",
    "</think>", "</thi", "</tool_call>", "<|python_tag|>", " <think>", "Hm.", CALL, "<tool", '{"name": "add", "arguments": {}}', '{"name": "add", "parameters": {}}',
    '[TOOL_CALLS] [{"name": "add", "arguments": {}}]', "\ufffd",
]  # fmt: skip
NAMES = [
    "tiny",
    "HERMES",
    "BARE",
    "LIST",
    "qwen3",
    "r1",
    "gemma3",
    "mistral v0.3",
    "pieces",
    "tidy",
    "BEGUN",
    "BARE_THINKS",
    "llama3.2",
]


def sentence_pieces() -> PreTrainedTokenizerFast:
    """One that writes spaces as ▁ and what it does not know as bytes, as Llama 2's does."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "It", "▁is", "3", "."]
    built = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    built.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="</s>", unk_token="<unk>")


@cache
def named(name: str) -> ChatFormat:
    if name in chat_families.FAMILIES:
        return chat_families.format_of(name)
    if name == "pieces":
        tokenizer: Any = sentence_pieces()
        tokenizer.chat_template = templates.HERMES
        return ChatFormat(tokenizer, 4096, {}, (tokenizer.eos_token_id,))
    tokenizer = load_tokenizer(ModelSettings(path="tiny"))
    if name == "tidy":
        tokenizer.clean_up_tokenization_spaces = True
        tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    return format_of(tokenizer, {"tiny": None, "tidy": templates.HERMES}.get(name, getattr(templates, name, None)))


def decoded(format: ChatFormat, ids: list[int]) -> str:
    """As an engine decodes what it has sampled."""
    ended = bool(ids) and ids[-1] in format.stop_ids
    return decode_text(format.tokenizer, ids[:-1] if ended else ids)


def sampled(format: ChatFormat, ids: list[int], stops: tuple[str | StopString, ...]) -> list[int]:
    """What of these an engine samples: up to the end of the turn, or until a text that ends it stands there."""
    for count in range(1, len(ids) + 1):
        if ids[count - 1] in format.stop_ids or any(
            find_stop(decoded(format, ids[:count]), stop) >= 0 for stop in stops
        ):
            return ids[:count]
    return ids


def as_told(
    renderer: ChatRenderer, format: ChatFormat, ids: list[int], stops: tuple[str | StopString, ...], drops: bool,
    tools: bool
) -> tuple[str, str]:  # fmt: skip
    """Thought and text of an action, as a client is told them of the whole."""
    text = cut_at_stop(decoded(format, ids), stops)
    thought = renderer.reasoning_length("p", text) if drops else 0
    calls = [call for call in renderer.calls("p", np.array(ids, np.int32), TOOLS) if call.name] if tools else []
    turn = renderer.tool_call_messages("p", text[thought:], calls, np.empty(0, np.int32))[0] if calls else None
    return text[:thought], str(turn["content"]) if turn else text[thought:]


@st.composite
def ids_of(draw: st.DrawFn, format: ChatFormat) -> list[int]:
    """Tokens of texts, and any others among them."""
    texts = st.sampled_from(PIECES).map(lambda text: format.tokenizer.encode(text, add_special_tokens=False))
    any_ = st.lists(st.integers(0, len(format.tokenizer) - 1), max_size=3)
    return [i for part in draw(st.lists(st.one_of(texts, texts, any_), max_size=8)) for i in part]


def writes_calls(renderer: ChatRenderer) -> bool:
    try:
        renderer.tool_format("p")
    except ValueError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", some(NAMES))
@settings(max_examples=by_day(10, 25))
@given(data=st.data(), drops=st.booleans(), stops=st.sampled_from([(), ("STOP",), ("TOP", "3."), ("\n\n",)]))
def test_pieces_come_together_to_what_the_whole_is_told_as(
    name: str, data: st.DataObject, drops: bool, stops: tuple[str | StopString, ...]
) -> None:  # fmt: skip
    format = named(name)
    renderer = ChatRenderer({"p": format})
    tools = writes_calls(renderer) and data.draw(st.booleans())
    if tools and data.draw(st.booleans()):
        stops = (*stops, *filter(None, [renderer.call_end("p")]))
    ids = sampled(format, data.draw(ids_of(format)), stops)
    thought, said = as_told(renderer, format, ids, stops, drops, tools)
    live = renderer.text_stream("p", stops, drops, tools)
    at, told = 0, ["", ""]
    while at < len(ids):
        size = data.draw(st.integers(1, 4))
        for number, new in enumerate(live.add_tokens(ids[at : at + size])):
            told[number] += new
        at += size
    spoken = told[1]
    for number, new in enumerate(live.finish(thought, said)):
        told[number] += new
    if spoken and told[0] != thought:  # a thought that ended again: what stands between was said
        assert spoken in thought
        assert told[1] == spoken + said
    else:
        assert told == [thought, said]


@pytest.mark.parametrize("text", ["It is 3 and no more than that.", "üñî – 汉字汉字 🧮🧮🧮🧮 and so on."])
@pytest.mark.parametrize("name", ["tiny", "HERMES", "qwen3", "pieces", "tidy"])
def test_text_flows(name: str, text: str) -> None:
    format = named(name)
    renderer = ChatRenderer({"p": format})
    live = renderer.text_stream("p", ("STOP",), True, writes_calls(renderer))
    ids = format.tokenizer.encode(text, add_special_tokens=False)
    said = [live.add_tokens([token])[1] for token in ids]
    assert text.startswith("".join(said))
    assert len("".join(said)) > len(text) - 8
    assert sum(map(bool, said)) >= 5
    assert sum(map(bool, said[: len(ids) // 2])) >= 2


def spoken(text: str, **options: Any) -> list[tuple[str, str]]:
    """What is told after each character."""
    live = TextStream(Detokenizer(lambda ids: "".join(map(chr, ids))), **options)
    return [live.add_tokens([ord(letter)]) for letter in text]


STOPS = st.lists(
    st.sampled_from(
        [
            "STOP",
            "TOP",
            "3.",
            "\n\n",
            "\ufffd",
            "汉字",
            "🧮",
            StopString("</tool_call>", False),
            StopString("</tool_call>", True),
            "e\u0301",
            " ",
            "a b",
            "</th",
        ]
    ),
    min_size=1,
)


@pytest.mark.parametrize("name", some(NAMES, of=2))
@settings(max_examples=by_day(12, 25))
@given(data=st.data(), stops=st.one_of(STOPS, st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=3)))
def test_a_text_ends_where_the_whole_of_it_holds_a_stop(
    name: str, data: st.DataObject, stops: list[str | StopString]
) -> None:
    """Also where the last of it is half a character, or will be tidied away."""
    format = named(name)
    ids = [token for token in data.draw(ids_of(format)) if token not in format.stop_ids]
    ending = StopStringChecker(detokenizer_factory(format.tokenizer, format.stop_ids)(), stops)
    for count, token in enumerate(ids, 1):
        text = str(format.tokenizer.decode(ids[:count], skip_special_tokens=True))
        ended = any(find_stop(text, stop) >= 0 for stop in stops)
        assert ending.add_token(token) == ended
        if ended:
            break


def test_a_mark_ends_a_text_that_begins_with_it() -> None:
    ending = StopStringChecker(Detokenizer(lambda ids: "".join(map(chr, ids))), (StopString("</", in_reasoning=False),))
    assert [ending.add_token(ord(letter)) for letter in "</"] == [False, True]
    assert StopString("</", in_reasoning=False).find("a</<think>b</think></") == 1


def test_what_ends_a_turn_is_no_part_of_its_text() -> None:
    """Also where a tokenizer takes it for a word like any other."""
    tokenizer = named("tiny").tokenizer
    first, last = (int(tokenizer.encode(text, add_special_tokens=False)[0]) for text in ("a", "b"))
    for stop_ids, text in (((), "ab"), ((last,), "a")):
        spelling = detokenizer_factory(tokenizer, stop_ids)()
        spelling.add_tokens([first, last])
        assert spelling.text + spelling.pending_text() == text


def test_a_stop_is_looked_for_in_what_is_new() -> None:
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return "".join(map(chr, ids))

    ending = StopStringChecker(Detokenizer(decode), ("yz",))
    assert not any(ending.add_token(ord("x")) for _ in range(1000))
    assert sum(decoded) < 10 * 1000
    assert [ending.add_token(ord(letter)) for letter in "yyz"] == [False, False, True]


class TestHolding:
    def test_a_text_that_may_end_it_is_held_until_it_cannot(self) -> None:
        assert [said for _, said in spoken("a STARSTOP!", stops=("STOP",))] == [
            "a", " ", "", "", "STA", "R", "", "", "", "", "",
        ]  # fmt: skip

    def test_a_thought_flows_and_what_follows_does_too(self) -> None:
        told = spoken("<think>Hm.</think>\n3", in_reasoning=False)
        assert [thought for thought, _ in told[:9]] == ["", "", "", "", "", "", "<think>", "H", "m"]
        assert "".join(thought for thought, _ in told) == "<think>Hm.</think>\n"
        assert told[-1] == ("", "3")

    def test_a_thought_that_the_prompt_began_flows_at_once(self) -> None:
        assert spoken("Hm", in_reasoning=True) == [("H", ""), ("m", "")]

    def test_where_thoughts_are_kept_they_are_text(self) -> None:
        assert "".join(said for _, said in spoken("<think>Hm.</think>\n3")) == "<think>Hm.</think>\n3"

    def test_another_text_than_was_told_is_an_error(self) -> None:
        live = TextStream(Detokenizer(lambda ids: "".join(map(chr, ids))))
        live.add_tokens([ord("a")])
        with pytest.raises(ValueError, match="another one than was told"):
            live.finish("", "b")

    def test_calls_are_held_and_what_comes_before_them_flows(self) -> None:
        format = replace(named("HERMES"))
        live = ChatRenderer({"p": format}).text_stream("p", (), False, True)
        ids = format.tokenizer.encode(f"I add.\n{CALL}", add_special_tokens=False)
        assert "".join(live.add_tokens([token])[1] for token in ids) == "I add."

    @pytest.mark.parametrize(("text", "marks", "held"), [
        ("", ["ab"], ""), ("aab", ["ab"], "a"), ("aa", ["aab"], ""), ("xab", ["bc", "abd"], "x"), ("abc", [], "abc"),
    ])  # fmt: skip
    def test_marks_are_found_wherever_they_may_begin(self, text: str, marks: list[str], held: str) -> None:
        assert text_before(text, marks) == held
