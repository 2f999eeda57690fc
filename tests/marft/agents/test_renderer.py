"""Prompts: what is in them, and cuts that are chosen and counted."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerBase

from marft.agents.prompt_messages import PromptTooLongError, TruncationPolicy, build_messages
from marft.common.types import AgentProfile
from marft.config.interfaces.channel import Message
from marft.inference.chat_messages import ChatFormat
from marft.inference.renderer import ChatRenderer

PROFILE = AgentProfile("actor", "Act well.", guidance="Be brief.")
LONG = " ".join(f"word{n}" for n in range(60))


def renderer(tokenizer: PreTrainedTokenizerBase, context: int = 512) -> ChatRenderer:
    return ChatRenderer({"p": ChatFormat(tokenizer, context, {})})


def render(
    tokenizer: PreTrainedTokenizerBase, context: int, observation: str, seen: list[Message], cut: TruncationPolicy
) -> tuple[str, int, int]:
    prompt = renderer(tokenizer, context).render("p", PROFILE, observation, seen, reserve=20, cut=cut)
    return tokenizer.decode(prompt.ids), prompt.truncated_tokens, len(prompt.ids)


def test_a_prompt_holds_profile_observation_messages_and_guidance_in_order(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    text, cut, _ = render(tiny_tokenizer, 512, "2 + 3 =", [Message("reasoner", "It is 5.")], TruncationPolicy())
    assert cut == 0
    places = [text.index(part) for part in ("Act well.", "2 + 3 =", "Message from reasoner:\nIt is 5.", "Be brief.")]
    assert places == sorted(places)
    assert text.endswith("<|im_start|>assistant\n")


def test_a_profile_without_instructions_has_no_system_message() -> None:
    assert [m["role"] for m in build_messages(AgentProfile("a"), "o", [])] == ["user"]


@pytest.mark.parametrize("keep", ["start", "end"])
@pytest.mark.parametrize("what", ["messages", "observation"])
def test_cuts_fit_the_context_and_are_counted(tiny_tokenizer: PreTrainedTokenizerBase, what: str, keep: str) -> None:
    seen = [Message("first", LONG), Message("second", "keep me")]
    whole = render(tiny_tokenizer, 4096, LONG, seen, TruncationPolicy())[2]
    text, cut, length = render(tiny_tokenizer, 450, LONG, seen, TruncationPolicy(what, keep))  # type: ignore[arg-type]
    assert length <= 430
    assert cut == whole - length > 0
    assert "Act well." in text
    assert "Be brief." in text
    if what == "messages":
        assert "keep me" in text  # the oldest message gives way first


def test_the_end_that_is_kept_is_the_one_asked_for(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    start = render(tiny_tokenizer, 200, LONG, [], TruncationPolicy("observation", "start"))[0]
    end = render(tiny_tokenizer, 200, LONG, [], TruncationPolicy("observation", "end"))[0]
    assert "word0 " in start
    assert "word59" not in start
    assert "word59" in end
    assert "word0 " not in end


def test_when_messages_are_used_up_the_observation_gives_way(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    text, _, length = render(tiny_tokenizer, 150, LONG, [Message("first", LONG)], TruncationPolicy("messages"))
    assert length <= 130
    assert "word30" not in text or "word59" in text


def test_a_prompt_that_may_not_be_cut_is_refused_with_the_remedy(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(PromptTooLongError, match=r"agent 'actor': .*raise the model's context"):
        render(tiny_tokenizer, 100, LONG, [], TruncationPolicy("none"))


def test_a_profile_alone_too_long_for_the_context_is_refused(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(PromptTooLongError):
        render(tiny_tokenizer, 40, LONG, [Message("first", LONG)], TruncationPolicy("messages"))


def test_text_of_any_kind_survives(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    odd = "naïve 你好 🙂\t\x00 \\frac{1}{2} {{ jinja }} {% raw %}"
    assert odd in render(tiny_tokenizer, 512, odd, [Message("a", odd)], TruncationPolicy())[0]
