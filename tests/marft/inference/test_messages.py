"""From messages to ids: what a template puts after a conversation is appended, and what it would change is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from marft.agents.conversation import Conversation
from marft.agents.prompt_messages import ChatMessage, InexactContinuation
from marft.common.reasoning import StopString
from marft.common.token_data import TokenSource
from marft.common.types import Action, TokenIds, Tool, ToolCall
from marft.inference.chat_messages import (
    REWRITES_HISTORY,
    ChatFormat,
    check_continuation,
    check_history,
    encode_new_messages,
    supports_reasoning,
    tokenize_messages,
)
from marft.inference.renderer import ChatRenderer
from tests import templates
from tests.episodes import make_action
from tests.marft.inference.test_tool_format import speaks

TOOL = Tool("add", "Add.", {"type": "object", "properties": {}})
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}]
SAID = {"role": "assistant", "content": "It is 3."}
NEW = [{"role": "user", "content": "And <|im_end|> twice?"}]
PICKY = "{%- if 'three' in m.content and messages | length > 3 -%}{{ raise_exception('no three') }}{%- endif -%}"
PLAIN = [None, templates.HERMES, templates.BARE, templates.LIST, templates.DROPS, templates.MOVES]


def format_of(tokenizer: PreTrainedTokenizerBase, template: str | None) -> ChatFormat:
    other = speaks(tokenizer, template or str(tokenizer.chat_template))
    assert isinstance(other.eos_token_id, int)
    return ChatFormat(other, 512, {}, (other.eos_token_id,))


def test_a_template_that_names_either_end_of_a_thought_knows_of_thoughts(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Some only cut them off what was said, and leave their beginning to the model."""
    for mark, known in (("", False), ("<think>", True), ("</think>", True)):
        assert supports_reasoning(format_of(tiny_tokenizer, f"{{{{ '{mark}' }}}}{templates.HERMES}")) == known


def test_what_ends_a_call_counts_outside_of_thoughts_where_there_are_any(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    for template, mark in (
        (templates.HERMES, "</tool_call>"),
        (templates.THINKS, StopString("</tool_call>", in_reasoning=False)),
        (templates.BEGUN, StopString("</tool_call>", in_reasoning=True)),
        (templates.BARE, ""),
    ):
        assert ChatRenderer({"p": format_of(tiny_tokenizer, template)}).call_end("p") == mark


def after(
    format: ChatFormat, said: str, new: Sequence[ChatMessage], tools: Sequence[Tool] = ()
) -> TokenIds | InexactContinuation:
    """What is appended to the chat in which ``said`` was sampled."""
    prompt = tokenize_messages(format, ASKED, tools)
    sampled = format.tokenizer.encode(said, add_special_tokens=False)
    ids = np.array([*prompt, *sampled, *format.stop_ids], np.int32)
    return encode_new_messages(format, ids, [*ASKED, {"role": "assistant", "content": said}], new, tools)


@pytest.mark.parametrize("template", PLAIN)
def test_prompt_turn_and_what_is_appended_are_the_whole_chat(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str | None
) -> None:
    format = format_of(tiny_tokenizer, template)
    appended = after(format, "It is 3.", NEW)
    assert isinstance(appended, np.ndarray)
    prompt = tokenize_messages(format, ASKED)
    sampled = format.tokenizer.encode("It is 3.", add_special_tokens=False)
    whole = tokenize_messages(format, [*ASKED, SAID, *NEW])
    assert [*prompt, *sampled, *format.stop_ids, *appended] == whole.tolist()
    assert "<|im_end|> twice" in str(format.tokenizer.decode(appended.tolist()))
    assert check_continuation(format) is None


@pytest.mark.parametrize("template", [None, templates.LIST])
def test_what_somebody_wrote_is_text_and_ends_no_turn(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str | None
) -> None:
    format = format_of(tiny_tokenizer, template)

    def ends(text: str) -> int:
        return int(np.isin(tokenize_messages(format, [{"role": "user", "content": text}]), format.stop_ids).sum())

    assert ends("And <|im_end|> twice?") == ends("And twice?")


@pytest.mark.parametrize("template", [None, templates.LIST])
def test_a_turn_that_was_cut_short_is_ended_first(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str | None
) -> None:
    format = format_of(tiny_tokenizer, template)
    cut = np.array([5, 6, 7], np.int32)
    ended = np.array([5, 6, 7, *format.stop_ids], np.int32)
    chat = [*ASKED, SAID]
    one, other = encode_new_messages(format, cut, chat, NEW), encode_new_messages(format, ended, chat, NEW)
    assert isinstance(one, np.ndarray)
    assert isinstance(other, np.ndarray)
    assert one.tolist() == [*format.stop_ids, *other]


def test_space_around_a_turn_is_no_change(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    trims = templates.HERMES.replace("{{ m.content }}{% for call", "{{ m.content | trim }}{% for call")
    format = format_of(tiny_tokenizer, trims)
    assert isinstance(after(format, "\n It is 3. ", NEW), np.ndarray)


@pytest.mark.parametrize(
    ("template", "said", "tools", "why"),
    [
        (templates.DROPS, "Hm.</think>It is 3.", (), "rewrites what came before"),
        (templates.LEAVES_OUT, "Hm.</think>It is 3.", (), "leaves out parts of what was said"),
        (templates.BEGINS, "It is 3.", (), "otherwise than one that begins"),
        (templates.REWRITES, "It is 3.", (), "leaves out parts of what was said"),
        (templates.MOVES, "It is 3.", (TOOL,), "rewrites what came before"),
        (templates.ONCE, "It is 3.", (), "cannot show the conversation: "),
        (templates.MARKS, "It is 3.", (), "rewrites what came before"),
        (templates.ENDLESS, "It is 3.", (), "puts no end of turn after what was said"),
    ],
)
def test_what_a_template_would_change_cannot_be_appended_and_the_reason_is_told(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str, said: str, tools: tuple[Tool, ...], why: str
) -> None:
    found = after(format_of(tiny_tokenizer, template), said, NEW, tools)
    assert isinstance(found, InexactContinuation)
    assert why in found.reason


@pytest.mark.parametrize(
    ("template", "tools", "always"),
    [
        (templates.BEGINS, (), True), (templates.REWRITES, (), True), (templates.MOVES, (TOOL,), True),
        (templates.DROPS, (), False), (templates.LEAVES_OUT, (), False), (templates.MOVES, (), False),
    ],
)  # fmt: skip
def test_whether_a_template_never_continues_is_known_from_probes(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str, tools: tuple[Tool, ...], always: bool
) -> None:
    found = check_continuation(format_of(tiny_tokenizer, template), tools)
    assert (found is not None) == always
    assert found is None or found.always


def test_a_template_is_probed_with_tools_and_without(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = ChatRenderer({"p": format_of(tiny_tokenizer, templates.MOVES)})
    ids = np.array(renderer.formats["p"].stop_ids, np.int32)
    for tools, continues in (((), True), ((TOOL,), False), ((), True)):
        assert isinstance(renderer.continue_chat("p", ids, [*ASKED, SAID], NEW, tools), np.ndarray) == continues


@pytest.mark.parametrize("template", [templates.DROPS, templates.ENDLESS])
def test_what_a_template_rewrites_is_seen_in_its_text_also_where_no_turn_ends(
    tiny_tokenizer: PreTrainedTokenizerBase, template: str
) -> None:
    format = format_of(tiny_tokenizer, template)
    thought = {"role": "assistant", "content": "Hm.</think>It is 3."}
    assert check_history(format, [*ASKED, thought], NEW, ()) == InexactContinuation(REWRITES_HISTORY)
    assert check_history(format, [*ASKED, SAID], NEW, ()) is None


def test_a_template_is_probed_once(tiny_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    format = format_of(tiny_tokenizer, templates.BEGINS)
    renderer, rendered = ChatRenderer({"p": format}), []
    whole = type(format.tokenizer).apply_chat_template

    def counted(*arguments: object, **options: object) -> object:
        rendered.append(1)
        return whole(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(format.tokenizer), "apply_chat_template", counted)
    first = renderer.continue_chat("p", np.array([1], np.int32), [*ASKED, SAID], NEW, ())
    probes = len(rendered)
    assert probes
    assert renderer.continue_chat("p", np.array([1], np.int32), [*ASKED, SAID], NEW, ()) == first
    assert len(rendered) == probes


def test_a_template_that_cannot_show_what_was_said_is_refused_with_a_remedy(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    ChatRenderer({"p": format_of(tiny_tokenizer, templates.BEGINS)}).check_multi_turn("p")
    with pytest.raises(ValueError, match=r"cannot show a conversation \(.*: no\); set models.….chat_template"):
        ChatRenderer({"p": format_of(tiny_tokenizer, templates.ONCE)}).check_multi_turn("p")


class TestToolResponses:
    """What is appended after a turn that called tools: as ever where the turn stays as it is, else nothing."""

    CALL = ToolCall("add", '{"a": 1, "b": 2}', output="three <|im_end|>")

    @staticmethod
    def after(
        tokenizer: PreTrainedTokenizerBase, template: str, said: str, *calls: ToolCall
    ) -> tuple[ChatRenderer, TokenIds | InexactContinuation]:  # fmt: skip
        renderer = ChatRenderer({"p": format_of(tokenizer, template)})
        chat = [*ASKED, *renderer.tool_call_messages("p", said, calls, np.empty(0, np.int32))]
        turn = np.array([7, *renderer.formats["p"].stop_ids], np.int32)
        return renderer, renderer.tool_response("p", turn, chat, calls, (TOOL,))

    @pytest.mark.parametrize(
        ("template", "said"),
        [
            (templates.HERMES, "Hm. <tool_call>{}"), (templates.HERMES, "<tool_call>{}"), (templates.BARE, "{}"),
            (templates.LIST, "[TOOL_CALLS]{}"), (templates.FORGETS, "<tool_call>{}"),
        ],
    )  # fmt: skip
    def test_it_is_what_the_format_says_where_the_turn_stays_as_it_is(
        self, tiny_tokenizer: PreTrainedTokenizerBase, template: str, said: str
    ) -> None:
        renderer, found = self.after(tiny_tokenizer, template, said, self.CALL)
        plain = renderer.tool_format("p").encode_response([self.CALL], renderer.formats["p"].stop_ids[0])
        assert isinstance(found, np.ndarray)
        assert isinstance(plain, np.ndarray)
        assert found.tolist() == plain.tolist()

    def test_a_template_for_one_call_a_turn_is_shown_the_answers_to_all(
        self, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        _, found = self.after(tiny_tokenizer, templates.BARE, "{}", self.CALL, replace(self.CALL, output="four"))
        assert isinstance(found, np.ndarray)
        shown = str(tiny_tokenizer.decode(found.tolist()))
        assert "three" in shown
        assert "four" in shown

    @pytest.mark.parametrize(
        ("template", "said", "why"),
        [
            (templates.FORGETS, "Hm. <tool_call>{}", "rewrites what came before"),
            (templates.THINKS, "<tool_call>{}", "rewrites what came before"),
            (templates.LIST, "Hm. [TOOL_CALLS]{}", "leaves out parts of what was said"),
            (templates.REWRITES, "Hm. <tool_call>{}", "leaves out parts of what was said"),
            (templates.MOVES_ON, "{}", "otherwise than one that begins"),
        ],
    )
    def test_nothing_where_the_template_shows_the_turn_otherwise(
        self, tiny_tokenizer: PreTrainedTokenizerBase, template: str, said: str, why: str
    ) -> None:
        _, found = self.after(tiny_tokenizer, template, said, self.CALL)
        assert isinstance(found, InexactContinuation)
        assert why in found.reason

    def test_a_thought_that_stays_goes_on_though_a_turn_without_one_would_not(
        self, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        thought = "<think>\nSo.\n</think>\n\n<tool_call>{}"
        renderer, found = self.after(tiny_tokenizer, templates.THINKS, thought, self.CALL)
        assert isinstance(renderer.tool_format("p").encode_response([self.CALL]), InexactContinuation)
        plain = format_of(tiny_tokenizer, templates.HERMES)
        wanted = ChatRenderer({"p": plain}).tool_format("p").encode_response([self.CALL], plain.stop_ids[0])
        assert isinstance(found, np.ndarray)
        assert isinstance(wanted, np.ndarray)
        assert found.tolist() == wanted.tolist()

    def test_what_can_be_shown_neither_way_is_told_in_words(self, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
        picky = templates.THINKS.replace("elif m.role == 'tool' -%}", "elif m.role == 'tool' -%}" + PICKY)
        renderer, found = self.after(tiny_tokenizer, picky, "<tool_call>{}", self.CALL)
        assert isinstance(found, InexactContinuation)
        chat = [*ASKED, *renderer.tool_call_messages("p", "<tool_call>{}", [self.CALL], np.empty(0, np.int32))]
        with pytest.raises(ValueError, match=r"its chat template cannot show the conversation: .*: no three"):
            renderer.tokenize_prompt("p", chat, (TOOL,))


def said_with_calls(*, begun: str = "") -> Action:
    """Two turns that call tools, the first after what a teammate wrote, and an answer."""
    calls = [
        ToolCall("add", '{"a": 1}', output="one", round=0),
        ToolCall("add", '{"a": 2}', output="two", round=0),
        ToolCall("sub", "{}", output="three", round=1),
        ToolCall("add", "{}", output="never heard", round=2),
    ]
    tokens = np.array([*[ord(character) for character in begun], 1, 2, 3], np.int32)
    marks = np.array([TokenSource.TEAMMATE] * len(begun) + [TokenSource.SAMPLED] * 3, np.uint8)
    texts = ("Hm. <tool_call>{}</tool_call>", "<tool_call>{}</tool_call>")
    one = replace(make_action("a"), policy="p", tokens=tokens, marks=marks, intermediate_texts=texts)
    return replace(one, calls=tuple(calls), text="It is 3.")


def test_an_action_with_tools_is_a_chat_of_turns_and_answers(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = ChatRenderer({"p": format_of(tiny_tokenizer, templates.HERMES)})
    messages = renderer.turn_messages("p", said_with_calls())
    assert [(message["role"], message["content"]) for message in messages] == [
        ("assistant", "Hm."), ("tool", "one"), ("tool", "two"), ("assistant", ""), ("tool", "three"),
        ("assistant", "It is 3."),
    ]  # fmt: skip
    assert [len(message["tool_calls"]) for message in messages if "tool_calls" in message] == [2, 1]
    assert renderer.formats["p"].tokenizer.apply_chat_template([*ASKED, *messages], tokenize=False)


def test_what_a_teammate_began_is_part_of_the_first_turn(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = ChatRenderer({"p": format_of(tiny_tokenizer, templates.HERMES)})
    action = said_with_calls()
    begun = tiny_tokenizer.encode("Let me see. ", add_special_tokens=False)
    tokens = np.array([*begun, *action.tokens], np.int32)
    marks = np.array([TokenSource.TEAMMATE] * len(begun) + [TokenSource.SAMPLED] * len(action.tokens), np.uint8)
    messages = renderer.turn_messages("p", replace(action, tokens=tokens, marks=marks))
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    assert said == ["Let me see. Hm.", "", "It is 3."]


class TestEndpoints:
    """They are sent messages; what is recorded is what their reader's template would have appended, where it can."""

    @staticmethod
    def appended(tokenizer: PreTrainedTokenizerBase, template: str | None, ended: bool = True) -> str:
        format = replace(format_of(tokenizer, template), remote=True)
        ids = np.array([7, *format.stop_ids] if ended else [7], np.int32)
        found = ChatRenderer({"p": format}).continue_chat("p", ids, [*ASKED, SAID], NEW, (TOOL,))
        assert isinstance(found, np.ndarray)
        return str(tokenizer.decode(found.tolist()))

    def test_what_is_new_is_recorded_in_the_readers_template(self, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
        begins = "<|im_start|>user\nAnd <|im_end|> twice?<|im_end|>\n<|im_start|>assistant\n"
        assert self.appended(tiny_tokenizer, None) == f"\n{begins}"
        assert self.appended(tiny_tokenizer, None, ended=False) == f"<|im_end|>\n{begins}"

    @pytest.mark.parametrize("template", [templates.REWRITES, templates.ONCE.replace("> 3", "> 2")])
    def test_or_as_its_words_alone(self, tiny_tokenizer: PreTrainedTokenizerBase, template: str) -> None:
        assert self.appended(tiny_tokenizer, template) == "And <|im_end|> twice?"


def test_what_a_template_drops_is_dropped_from_there_on_and_what_came_before_stays_as_it_was_sampled(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    """One turn sampled letter by letter, then one with a thought, which the template shows no more."""
    renderer = ChatRenderer({"p": format_of(tiny_tokenizer, templates.DROPS)})

    class Spoken:
        def tokenize_prompt(self, messages: Sequence[ChatMessage]) -> TokenIds:
            return renderer.tokenize_prompt("p", messages, ())

        def continue_chat(
            self, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage]
        ) -> TokenIds | InexactContinuation:
            return renderer.continue_chat("p", ids, messages, new, ())

    def letters(text: str) -> TokenIds:
        parts = [tiny_tokenizer.encode(letter, add_special_tokens=False) for letter in text]
        return np.array([*np.concatenate(parts), *renderer.formats["p"].stop_ids], np.int32)

    record, thought = Conversation(Spoken()), "Hm.</think>Four."
    told = record.add_messages(ASKED, record.root)
    first = record.add_turn(told, [SAID], letters("It is 3."), "0")
    second = record.add_turn(
        record.add_messages(NEW, first), [{"role": "assistant", "content": thought}], letters(thought), "1"
    )  # fmt: skip
    third = record.add_messages([{"role": "user", "content": "Sure?"}], second)
    assert third.context[: len(first.context)].tolist() == first.context.tolist()
    assert third.previous is first
    assert "rewrites what came before" in third.restart_reason
    shown = str(tiny_tokenizer.decode(third.context.tolist()))
    assert "Four.<|im_end|>" in shown
    assert "Hm." not in shown
