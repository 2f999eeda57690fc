"""Prompts through a model's own chat template, with context-window cuts that are chosen and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.engines.tool_format import ToolFormat, schema
from marft.game.rendering import Cut, Message, PromptTooLongError, compose
from marft.types import Action, Profile, Prompt, TokenIds, Tool, ToolCall

MOST_CHARACTERS = 32  # of a token, about: what is longer than so many times the tokens wanted need not be counted


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How one model is spoken to: its tokenizer, its template's options, and its context in tokens.

    A ``remote`` one is spoken to in messages; the tokenizer is its reader's.
    """

    tokenizer: PreTrainedTokenizerBase
    context: int
    template_options: Mapping[str, Any]
    stop_ids: tuple[int, ...] = ()
    remote: bool = False


class ChatRenderer:
    """Renders for every policy of a team in the chat format of its model.

    Args:
        formats: by policy name.
    """

    def __init__(self, formats: Mapping[str, ChatFormat]) -> None:
        self.formats = formats
        self._tool_formats: dict[str, ToolFormat] = {}

    def render(
        self, policy: str, profile: Profile, observation: str, seen: Sequence[Message], *, reserve: int, cut: Cut
    ) -> Prompt:
        """Render the messages of a profile, an observation and what is seen, by the model's own chat template."""
        format = self.formats[policy]
        budget = format.context - reserve
        texts = _Texts(observation, tuple(seen))
        chat = compose(profile, texts.observation, texts.seen)
        ids = _ids(format, chat, profile.tools)
        whole = len(ids)
        while len(ids) > budget:
            shorter = _shorten(format.tokenizer, texts, len(ids) - budget, cut)
            if shorter is None:
                raise PromptTooLongError(
                    f"agent {profile.role!r}: its rollout observation has {len(ids)} tokens, but the context of "
                    f"{format.context} leaves {budget} beside max_new_tokens = {reserve}; shorten the instructions, "
                    "give it fewer tools, lower max_new_tokens, raise the model's context, or allow cuts "
                    "(agents.context.cut)"
                )
            texts = shorter
            chat = compose(profile, texts.observation, texts.seen)
            ids = _ids(format, chat, profile.tools)
        return Prompt(ids, whole - len(ids), tuple(chat), profile.tools)

    def count(self, policy: str, text: str) -> int:
        """Tokens of a text, on its own."""
        return len(self.formats[policy].tokenizer.encode(text, add_special_tokens=False))

    def option(self, policy: str, text: str) -> TokenIds:
        """The ids of a whole turn that says ``text``, end of turn included."""
        format = self.formats[policy]
        if not format.stop_ids:
            raise ValueError(f"policy {policy!r} has no end-of-turn token, without which options cannot be compared")
        ids = format.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return np.array([*ids, *format.stop_ids[:1]], np.int32)

    def context(self, policy: str) -> int:
        """Tokens that prompt and action may have together."""
        return self.formats[policy].context

    def clip(self, policy: str, text: str, tokens: int) -> str:
        """The first ``tokens`` tokens of a text, with a note on how much is left out."""
        tokenizer, head = self.formats[policy].tokenizer, text[: tokens * MOST_CHARACTERS]
        ids = tokenizer.encode(head, add_special_tokens=False, split_special_tokens=True)
        if len(ids) <= tokens and len(head) == len(text):
            return text
        kept = str(tokenizer.decode(ids[:tokens]))
        return f"{kept}\n[{len(text) - len(kept)} more characters left out]"

    def calls(self, policy: str, tokens: TokenIds, tools: Sequence[Tool]) -> Sequence[ToolCall]:
        """The tools that a sampled turn calls, read in the format of the model's own template."""
        return self.tool_format(policy).read(tokens, tools)

    def tool_response(self, policy: str, calls: Sequence[ToolCall], turn: TokenIds) -> TokenIds:
        """What the template puts after a turn that called tools: their answers, and the start of the next turn."""
        format = self.formats[policy]
        if format.remote:  # for the record alone: the endpoint is sent messages
            text = "\n".join(call.output for call in calls)
            ids = format.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            return np.array(ids, np.int32)
        ended = bool(len(turn)) and int(turn[-1]) in format.stop_ids
        return self.tool_format(policy).response(calls, ended)

    def tool_format(self, policy: str) -> ToolFormat:
        """How the model of a policy writes calls.

        Raises:
            ValueError: its chat template has no tool format.
        """
        if policy not in self._tool_formats:
            format = self.formats[policy]
            self._tool_formats[policy] = ToolFormat.of(format.tokenizer, format.template_options, format.stop_ids)
        return self._tool_formats[policy]

    def response_prefix(self, policy: str, other: Action) -> int:
        """How many of the first tokens of ``other`` a turn of ``policy`` can begin with."""
        mine, theirs = self.formats[policy], self.formats[other.policy]
        if mine.remote:
            raise ValueError(
                f"a turn of policy {policy!r} cannot begin with what {other.agent!r} wrote: it is remote, and "
                "endpoints take whole messages alone; pass it on as a message (sees=[…])"
            )
        if mine.tokenizer is not theirs.tokenizer and mine.tokenizer.get_vocab() != theirs.tokenizer.get_vocab():
            raise ValueError(
                f"a turn of policy {policy!r} cannot begin with what {other.agent!r} wrote: their tokenizers differ; "
                "pass it on as a message (sees=[…])"
            )
        return len(other.tokens) - bool(len(other.tokens) and other.tokens[-1] in theirs.stop_ids)


@dataclass(frozen=True, slots=True)
class _Texts:
    observation: str
    seen: tuple[Message, ...]


def _ids(format: ChatFormat, chat: list[dict[str, str]], tools: Sequence[Tool]) -> TokenIds:
    """Only the template's own control tokens are tokens; what somebody wrote stays text."""
    ids = format.tokenizer.apply_chat_template(
        chat, tools=[schema(tool) for tool in tools] or None, add_generation_prompt=True, return_dict=False,
        sanitize_control_tokens=True, **format.template_options,
    )  # fmt: skip
    return np.array(ids, np.int32)


def _shorten(tokenizer: PreTrainedTokenizerBase, texts: _Texts, excess: int, cut: Cut) -> _Texts | None:
    """Cut up to ``excess`` tokens from the first text that may give way; None when nothing is left that may."""
    if cut.what == "nothing":
        return None
    message = next((index for index, message in enumerate(texts.seen) if message.text), None)
    if texts.observation and (cut.what == "observation" or message is None):
        return replace(texts, observation=_cut_text(tokenizer, texts.observation, excess, cut))
    if message is None:
        return None
    shorter = replace(texts.seen[message], text=_cut_text(tokenizer, texts.seen[message].text, excess, cut))
    return replace(texts, seen=(*texts.seen[:message], shorter, *texts.seen[message + 1 :]))


def _cut_text(tokenizer: PreTrainedTokenizerBase, text: str, excess: int, cut: Cut) -> str:
    """The text without ``excess`` of its tokens; always shorter than before."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    kept = max(0, len(ids) - excess)
    shorter = str(tokenizer.decode(ids[len(ids) - kept :] if cut.keep == "end" else ids[:kept])) if kept else ""
    return shorter if len(shorter) < len(text) else ""  # half a character can decode to as much text again
