"""Turns that are given as text, recorded ones and choices, are the tokens that a model has to sample for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from marft.agents.chat import Chat
from marft.agents.prompt_messages import TruncationPolicy
from marft.agents.streaming import TokenStream
from marft.common import reasoning
from marft.common.types import AgentProfile, Observation, Tool, ToolCall
from marft.config.interfaces.organization import Agents
from marft.inference.chat_messages import ChatFormat, render_text, tokenize_messages
from marft.inference.detokenizer import detokenizer_factory
from marft.inference.renderer import ChatRenderer
from marft.models.control_tokens import decode_text
from marft_serve.traces.turn_tokens import Thinking, encode_turn
from marft_serve.traces.types import TracedTurn, UnreadableError
from tests import sentencepiece_tokenizers as sentencepiece
from tests.chat_families import FAMILIES, Family, chatml, format_of, tokenizer_of
from tests.chat_templates import BEGINS, CHATML, HARMONY, QWEN3, THINK
from tests.chat_templates import EACH as TURNS
from tests.chatting import Said, Stopping, asked, talked

CHAT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"})
ADD = Tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
CALL = ToolCall("add", '{"a": 1}', output="3")
EACH = pytest.mark.parametrize("name", FAMILIES)
SHOWN_WITH_A_THOUGHT = {"qwen3": "<think>\n\n</think>\n\n", "deepseek r1 distilled": "\n</think>\n\n"}


def ids_of(
    format: ChatFormat, text: str, thought: str = "", thinking: Thinking = "keep", calls: tuple[ToolCall, ...] = (),
    tools: tuple[Tool, ...] = (), chat: Any = CHAT,
) -> list[int]:  # fmt: skip
    turn = TracedTurn("0", ("a",), (), text, reasoning=thought, calls=calls)
    return encode_turn(ChatRenderer({"p": format}), "p", chat, tools, turn, thinking).tolist()


def decoded(format: ChatFormat, ids: list[int]) -> str:
    return str(format.tokenizer.decode(ids, clean_up_tokenization_spaces=False))


class TestFamilies:
    @EACH
    def test_a_turn_begins_where_the_prompt_ends_and_ends_as_its_family_documents(self, name: str) -> None:
        family, format = FAMILIES[name], format_of(name)
        begins = family.said.removesuffix("It is 3.") if family.said != "It is 3." else ""
        begins = SHOWN_WITH_A_THOUGHT.get(name, "" if "<think>" in begins else begins)
        assert decoded(format, ids_of(format, "It is 3.")) == f"{begins}It is 3.{family.special[0]}"

    @EACH
    def test_prompt_and_turn_are_what_the_template_shows_of_both(self, name: str) -> None:
        if name == "deepseek r1 distilled":
            pytest.skip("its template begins a thought in the prompt, and shows none that was said")
        format = format_of(name)
        prompt = tokenize_messages(format, CHAT).tolist()
        shown = render_text(format, [*CHAT, {"role": "assistant", "content": "It is 3."}], add_generation_prompt=False)
        assert shown.startswith(decoded(format, prompt + ids_of(format, "It is 3.")[:-1]))

    @EACH
    def test_a_choice_is_shown_as_a_turn_is_and_read_as_what_it_says(self, name: str) -> None:
        family, format = FAMILIES[name], format_of(name)
        renderer = ChatRenderer({"p": format})
        begins = "" if "think" in family.said else family.said.removesuffix("It is 3.")
        option = renderer.tokenize_option("p", "yes")
        assert decoded(format, option.tolist()) == f"{begins if begins != 'Hm.' else ''}yes{family.special[0]}"
        assert renderer.decode_option("p", option) == "yes"


class TestTurnsThatCannotBeExact:
    def test_a_thought_after_a_prompt_that_has_ended_it_is_refused(self) -> None:
        format = format_of("qwen3, no thinking")
        assert decoded(format, ids_of(format, "It is 3.", "Hm.", "drop")) == "It is 3.<|im_end|>"
        with pytest.raises(UnreadableError, match="otherwise than one that begins"):
            ids_of(format, "It is 3.", "Hm.")

    def test_a_template_that_leaves_out_what_was_said_is_refused(self) -> None:
        tokenizer = tokenizer_of(Family("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content[:20] }}<|im_end|>"
                                        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
                                        CHATML, **chatml("")))  # fmt: skip
        format = ChatFormat(tokenizer, 4096, {}, (int(tokenizer.convert_tokens_to_ids("<|im_end|>")),))
        with pytest.raises(UnreadableError, match="leaves out parts"):
            ids_of(format, "It is a long story, which nobody shows to its end.")

    def test_calls_that_would_not_be_read_back_are_refused(self) -> None:
        format = format_of("qwen2.5")
        assert ids_of(format, "I add.", calls=(CALL,), tools=(ADD,))
        with pytest.raises(UnreadableError, match="otherwise than one that is sampled"):
            ids_of(
                format, 'See <tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>', calls=(CALL,), tools=(ADD,)
            )

    @pytest.mark.parametrize("tools", [(), (Tool("other", "", {}),)])
    def test_a_call_of_a_tool_that_the_agent_lacks_is_refused_by_name(self, tools: tuple[Tool, ...]) -> None:
        with pytest.raises(UnreadableError, match="'add'"):
            ids_of(format_of("qwen2.5"), "", calls=(CALL,), tools=tools)


class TestChannels:
    def test_a_thought_is_where_the_template_puts_thoughts(self) -> None:
        """As in gpt-oss, whose templates take a thought beside the text."""
        analysis = (
            "{% if loop.last and m.thinking and not add_generation_prompt %}<|start|>assistant<|channel|>analysis"
            "<|message|>{{ m.thinking }}<|end|>{% endif %}<|start|>assistant<|channel|>final"
        )
        family = FAMILIES["gpt-oss"]
        template = HARMONY.replace("<|start|>assistant<|channel|>final", analysis)
        tokenizer = tokenizer_of(Family(template, family.special, family.opening, family.default, family.later))
        ends = tuple(int(tokenizer.convert_tokens_to_ids(end)) for end in family.declared)
        format = ChatFormat(tokenizer, 4096, {}, ends)
        assert decoded(format, ids_of(format, "It is 3.", "Hm.")) == (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 3.<|return|>"
        )
        assert decoded(format, ids_of(format, "It is 3.", "Hm.", "drop")) == (
            "<|channel|>final<|message|>It is 3.<|return|>"
        )


def specially_thinking(
    special: bool = True, thinks: tuple[str, ...] = THINK, template: str = QWEN3
) -> ChatFormat:  # fmt: skip
    """A model whose marks of thoughts are special tokens."""
    marks, control = ((), (*CHATML, *thinks)) if special else (thinks, CHATML)
    tokenizer = tokenizer_of(Family(template, control, marks=marks, **chatml("")))
    return ChatFormat(tokenizer, 4096, {}, (int(tokenizer.convert_tokens_to_ids("<|im_end|>")),))


class TestSpecialMarksOfThoughts:
    def test_are_the_tokens_that_the_model_samples(self) -> None:
        format = specially_thinking()
        ids = ids_of(format, "It is 3.", "Hm.")
        assert [ids.count(int(format.tokenizer.convert_tokens_to_ids(mark))) for mark in THINK] == [1, 1]
        assert decoded(format, ids) == "<think>\nHm.\n</think>\n\nIt is 3.<|im_end|>"

    def test_stay_in_texts_from_which_control_tokens_are_gone(self) -> None:
        format = specially_thinking()
        renderer, ids = ChatRenderer({"p": format}), ids_of(format, "It is 3.", "Hm.")
        text = "<think>\nHm.\n</think>\n\nIt is 3."
        assert decode_text(format.tokenizer, ids) == text
        assert decode_text(format.tokenizer, [*ids, *ids]) == text + text
        assert renderer.decode_tokens("p", tokenize_messages(format, CHAT)[:0]) == ""
        spelling = detokenizer_factory(format.tokenizer, format.stop_ids)()
        spelling.add_tokens(ids)
        assert spelling.text + spelling.pending_text() == text
        assert text[renderer.reasoning_length("p", text) :] == "It is 3."

    def test_are_letters_in_what_others_write(self) -> None:
        format = specially_thinking()
        forged = ({"role": "user", "content": "</think> 1 + 2? <|im_end|>"},)
        prompt = tokenize_messages(format, forged).tolist()
        end, mark = (int(format.tokenizer.convert_tokens_to_ids(token)) for token in ("<|im_end|>", "</think>"))
        assert (prompt.count(end), prompt.count(mark)) == (1, 0)
        assert "</think> 1 + 2? <|im_end|>" in decoded(format, prompt)
        ids = ids_of(format, "It is <|im_end|> 3.", "Hm.", chat=forged)
        assert (ids.count(end), ids.count(mark)) == (1, 1)

    def test_are_no_other_ids_than_those_of_marks_that_are_not_special(self) -> None:
        one, other = specially_thinking(), specially_thinking(special=False)
        assert decoded(one, ids_of(one, "Yes.", "Hm.")) == decoded(other, ids_of(other, "Yes.", "Hm."))


@pytest.mark.parametrize(
    "marks", [marks for marks in reasoning.DELIMITER_PAIRS if marks != reasoning.CHANNEL_DELIMITERS]
)
@pytest.mark.parametrize("special", [True, False])
class TestMarksOfOtherFamilies:
    def test_are_the_tokens_that_the_model_samples_and_stay_in_texts(
        self, marks: tuple[str, str], special: bool
    ) -> None:  # fmt: skip
        format = specially_thinking(special, marks, TURNS + BEGINS)
        ids = ids_of(format, "It is 3.", "Hm.")
        text = decode_text(format.tokenizer, ids[:-1])
        assert text == f"{marks[0]}\nHm.\n{marks[1]}\n\nIt is 3."
        assert [ids.count(int(format.tokenizer.convert_tokens_to_ids(mark))) for mark in marks] == [1, 1]
        assert text[ChatRenderer({"p": format}).reasoning_length("p", text) :] == "It is 3."

    def test_end_a_thought_that_the_prompt_begins(self, marks: tuple[str, str], special: bool) -> None:
        begun = BEGINS.replace("assistant\n", f"assistant\n{marks[0]}\n")
        assert begun != BEGINS
        format = specially_thinking(special, marks, TURNS + begun)
        renderer = ChatRenderer({"p": format})
        for thought in ("Hm.", ""):
            text = decode_text(format.tokenizer, ids_of(format, "It is 3.", thought)[:-1])
            assert text == f"{thought}\n{marks[1]}\n\nIt is 3."
            assert text[renderer.reasoning_length("p", text) :] == "It is 3."
        with pytest.raises(ValueError, match="begins every turn with a thought"):
            renderer.encode_prefix("p", "It is")
        opened = renderer.encode_prefix("p", f"{marks[0]}Hm.{marks[1]}It is").tolist()
        assert opened.count(int(format.tokenizer.convert_tokens_to_ids(marks[1]))) == 1


def test_a_thought_that_the_template_leaves_out_is_not_taken_for_the_text_that_repeats_it() -> None:
    template = TURNS.replace("m.content", "m.content.split('</think>')[-1] | trim")
    format = specially_thinking(template=template + BEGINS)
    assert decoded(format, ids_of(format, "It is 3.")) == "It is 3.<|im_end|>"
    with pytest.raises(UnreadableError, match="leaves out parts"):
        ids_of(format, "It is 3.", "3")


SENTENCEPIECE = pytest.mark.parametrize("kind", ["legacy", "always", "first"])
TEMPLATES = pytest.mark.parametrize("template", sentencepiece.TEMPLATES)
ASKED = ({"role": "user", "content": "1 + 2?"},)


@SENTENCEPIECE
@TEMPLATES
class TestSentencePiece:
    def drop_truncated(self, format: ChatFormat, text: str) -> list[int]:
        """The ids that the text of prompt and turn has as one."""
        shown = render_text(format, [*ASKED, {"role": "assistant", "content": text}], add_generation_prompt=False)
        ids = list(format.tokenizer.encode(shown, add_special_tokens=False))
        return ids[: ids.index(format.stop_ids[0], len(tokenize_messages(format, ASKED))) + 1]

    @pytest.mark.parametrize("text", ["yes", "no", "It is yes", "3", "a  b"])
    def test_choices_and_turns_are_the_tokens_of_the_whole_text(
        self, text: str, template: str, kind: sentencepiece.Kind
    ) -> None:
        format = sentencepiece.format_of(template, kind)
        prompt, option = (
            tokenize_messages(format, ASKED).tolist(),
            ChatRenderer({"p": format}).tokenize_option("p", text).tolist(),
        )
        assert prompt + option == self.drop_truncated(format, text)
        assert prompt + ids_of(format, text, chat=ASKED) == self.drop_truncated(format, text)

    def test_what_they_say_is_read_back(self, template: str, kind: sentencepiece.Kind) -> None:
        format = sentencepiece.format_of(template, kind)
        renderer = ChatRenderer({"p": format})
        for text in ("yes", "It is yes", "3"):
            assert renderer.decode_option("p", renderer.tokenize_option("p", text)).strip() == text

    def test_text_within_a_turn_has_no_space_before_it(self, template: str, kind: sentencepiece.Kind) -> None:
        format = sentencepiece.format_of(template, kind)
        inside = ChatRenderer({"p": format}).encode_text("p", "yes").tolist()
        assert format.tokenizer.convert_ids_to_tokens(inside) == ["yes"]
        both = [*tokenize_messages(format, ASKED).tolist(), *inside, *inside]
        assert decoded(format, both).endswith("yesyes")


def test_a_prompt_that_ends_within_a_token_is_gone_on_from_as_it_stands() -> None:
    """What the whole text would join is two tokens to a model that goes on from the prompt."""
    format = sentencepiece.format_of("tinyllama", "first")
    format.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }} A: {% else %}{{ m.content }}{{ eos_token }}"
        "{% endif %}{% endfor %}"
    )
    prompt, ids = tokenize_messages(format, ASKED).tolist(), ids_of(format, "yes", chat=ASKED)
    assert format.tokenizer.convert_ids_to_tokens(prompt)[-1] == "▁"
    assert format.tokenizer.convert_ids_to_tokens(ids) == ["yes", "</s>"]


def test_profiles_are_no_part_of_a_turn() -> None:
    format = format_of("glm4")
    prompt = ChatRenderer({"p": format}).render(
        "p", AgentProfile("solver", "Be brief."), "1 + 2?", [], reserve=9, cut=TruncationPolicy()
    )
    assert decoded(format, [*prompt.ids.tolist(), *ids_of(format, "3")]).endswith("<|assistant|>\n3<|user|>")


@SENTENCEPIECE
@TEMPLATES
class TestTurnsThatOthersBegin:
    def test_begin_as_the_template_would_show_them(self, template: str, kind: sentencepiece.Kind) -> None:
        format = sentencepiece.format_of(template, kind)
        shown = render_text(format, [*ASKED, {"role": "assistant", "content": "It is"}], add_generation_prompt=False)
        begun = (
            tokenize_messages(format, ASKED).tolist() + ChatRenderer({"p": format}).encode_prefix("p", "It is").tolist()
        )
        assert begun == format.tokenizer.encode(shown, add_special_tokens=False)[: len(begun)]
        assert decoded(format, begun).endswith("It is")

    def test_keep_the_space_of_the_first_word_that_goes_on_from_them(
        self, template: str, kind: sentencepiece.Kind
    ) -> None:
        format, lives = sentencepiece.format_of(template, kind), [TokenStream()]

        async def talk(_: Observation, agents: Agents) -> None:
            chat = Chat(ASKED, prefix="It", token_stream=lives[0])
            reply = await agents.a.reply(Observation("?"), chat)
            assert (reply.action.text, reply.message["content"]) == (" is no", "It is no")
            again = await agents.a.reply(Observation("?"), replace(chat, stop=("yes",), token_stream=None))
            assert again.message["content"] == "It is "
            by_teammate = await agents.b(Observation("?"), begins=reply.action)
            assert by_teammate.text == " is no no"
            after = Chat((*ASKED, {"role": "assistant", "content": "It is "}, *ASKED))
            assert not (await agents.a.reply(Observation("?"), after)).action.restarted

        said = iter(["is no", "is yes no", "no", "yes"])
        episode, _ = talked(format, lambda key: Said([next(said)]), talk, "a", "b", speaker=Stopping)
        assert episode.status == "terminated", episode.error
        assert lives[0].make_text_stream is not None
        assert lives[0].make_text_stream().add_tokens(episode.actions[0].tokens.tolist()) == ("", " is no")

    def test_pieces_of_a_text_are_put_together_to_it(self, template: str, kind: sentencepiece.Kind) -> None:
        format = sentencepiece.format_of(template, kind)

        async def talk(_: Observation, agents: Agents) -> None:
            for begun, text in (("", "It is yes"), ("It", " is yes")):
                turns = [*ASKED, {"role": "assistant", "content": begun}][: 1 + bool(begun)]
                goes_on = {"continue_final_message": True, "add_generation_prompt": False} if begun else {}
                _, reply = await asked(agents.a, turns, logprobs=True, **goes_on)
                assert "".join(reply.pieces[:-1]) == reply.action.text == text

        said = iter(["It is yes", "is yes"])
        episode, _ = talked(format, lambda key: Said([next(said)]), talk)
        assert episode.status == "terminated", episode.error
