"""Prompt rendering with the model's own chat template, including recorded context-window cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.agents.chat import Chat
from marft.agents.live import LiveText, Spelling
from marft.agents.rendering import NOTHING, ChatMessage, Cut, Message, NotExact, PromptTooLongError, compose, exchange
from marft.common.marks import Grammar
from marft.common.texts import raised
from marft.common.thoughts import MARKS, Said, thinking_after, thought
from marft.common.types import Action, Profile, Prompt, TokenIds, Tool, ToolCall
from marft.inference.call_grammar import CallFormat, grammar_of
from marft.inference.grammars import Grammars
from marft.inference.messages import (
    ASKED,
    PROBES,
    appended,
    begins_thought,
    changes_turns,
    common,
    continue_ids,
    end_of,
    marks_of,
    render_messages,
    rewritten,
    thinks,
)
from marft.inference.spelling import spelling_of
from marft.inference.tool_format import ToolFormat
from marft.inference.whole_turns import begun_turn, whole_turn
from marft.models.control_tokens import encoded_inside, marked, spelled, spelled_inside
from marft.models.templates import CANNOT_RENDER

MOST_OPTIONS, LONGEST_OPTION = 4096, 256  # limits of the per-policy cache of option ids; the length is in characters
PROBE_OPTIONS = ("1", "Yes.")  # two texts without a common prefix
MOST_CHARACTERS = 32  # generous bound on characters per token; longer text certainly exceeds the token limit


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Chat format for one model: tokenizer, template options and context length in tokens.

    If ``remote`` is true, the policy is behind an endpoint. It receives messages, and ``tokenizer`` is the local
    tokenizer that records its text. ``unheld`` gives the reason why grammars are not supported; "" if they are.
    """

    tokenizer: PreTrainedTokenizerBase
    context: int
    template_options: Mapping[str, object]
    stop_ids: tuple[int, ...] = ()
    remote: bool = False
    unheld: str = ""


class ChatRenderer:
    """Prompt renderer for every policy in a team, with the chat format of the policy's model.

    Args:
        formats: by policy name.
    """

    def __init__(self, formats: Mapping[str, ChatFormat]) -> None:
        self.formats = formats
        self._tool_formats: dict[str, ToolFormat] = {}
        self._call_ends: dict[str, str | Said] = {}  # by policy
        self._spellings: dict[str, Callable[..., Spelling]] = {}
        self._begun: dict[str, bool] = {}  # by policy: whether its template starts each turn with reasoning
        self._changes: dict[tuple[str, bool], NotExact | None] = {}  # by policy and whether it has tools
        self._options: dict[str, dict[str, TokenIds]] = {}  # by policy and text

    def render(
        self, policy: str, profile: Profile, observation: str, seen: Sequence[Message], *, reserve: int, cut: Cut
    ) -> Prompt:
        """Render a profile's messages, the observation and the visible messages through the model's chat template.

        Args:
            reserve: tokens of the context reserved for the action.
            cut: text that may be cut if the prompt is too long.

        Raises:
            PromptTooLongError: the prompt exceeds the context after all permitted cuts.
        """
        format = self.formats[policy]
        budget = format.context - reserve
        texts = _Texts(observation, tuple(seen))
        chat = compose(profile, texts.observation, texts.seen)
        ids = render_messages(format, chat, profile.tools)
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
            ids = render_messages(format, chat, profile.tools)
        return Prompt(ids, whole - len(ids), tuple(chat), profile.tools)

    def start(self, policy: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> TokenIds:
        """Return the ids of a conversation, up to the start of the agent's next turn, [T].

        Raises:
            ValueError: the chat template cannot render the conversation.
        """
        try:
            return render_messages(self.formats[policy], messages, tools)
        except CANNOT_RENDER as error:
            raise ValueError(f"its chat template cannot show the conversation: {raised(error)}") from error

    def go_on(
        self, policy: str, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> TokenIds | NotExact:  # fmt: skip
        """Return the template's ids after a conversation with a completed turn, [T].

        Returns :class:`NotExact` if no exact continuation exists. For a remote policy, the ids are only a record.
        """
        format = self.formats[policy]
        if format.remote:
            return self._recorded(format, ids, new)
        key = policy, bool(tools)
        if key not in self._changes:
            self._changes[key] = changes_turns(format, tools)
        return self._changes[key] or continue_ids(format, ids, messages, new, tools)

    def thought(self, policy: str, text: str, begun: str = "") -> int:
        """Return the number of leading characters in a turn's text that belong to reasoning.

        Args:
            begun: text that precedes ``text`` in the turn. If empty, the template may have opened the reasoning.
        """
        if policy not in self._begun:
            format = self.formats[policy]
            self._begun[policy] = not format.remote and begins_thought(format)
        return thought(text, thinking_after(begun, self._begun[policy]) and not self.formats[policy].remote)

    def opening(self, policy: str, text: str) -> TokenIds:
        """Return the ids for a client's prefix of the assistant turn, [T], after the template's own turn header.

        Control tokens in the prefix stay plain text. Reasoning tags are an exception, because the prefix is part of the
        agent's own turn.

        Raises:
            ValueError: the policy is remote, or its template starts with reasoning that the prefix does not close.
        """
        format = self.formats[policy]
        if format.remote:
            raise ValueError("it is behind an endpoint, which takes whole messages alone")
        if begins_thought(format):
            begins, ends = marks_of(format)
            if ends not in text:
                raise ValueError(
                    "its chat template begins every turn with a thought, which the text would be part of; end it in "
                    f"the text ({ends}), or turn thoughts off (template_options.enable_thinking = false)"
                )
            text = text.lstrip().removeprefix(begins)
        return begun_turn(format, text, own=True)

    def live(
        self, policy: str, stops: Sequence[str | Said], drops: bool, tools: bool, begun: str = ""
    ) -> LiveText:  # fmt: skip
        """Return a streaming detokenizer for a turn.

        Args:
            stops: stop strings.
            drops: whether to hide reasoning.
            tools: whether tool calls may follow, which the stream must hold back.
            begun: text that precedes the sampled tokens in the turn.
        """
        format = self.formats[policy]
        if policy not in self._spellings:
            self._spellings[policy] = spelling_of(format.tokenizer, format.stop_ids)
        thinking = thinking_after(begun, begins_thought(format))
        certain = partial(self.tool_format(policy).after(begun).certain, dropped=drops) if tools else len
        return LiveText(self._spellings[policy](bool(begun)), stops, thinking if drops else None, certain)

    def turn(self, policy: str, action: Action) -> list[ChatMessage]:
        """Convert an action to chat messages: text, tool calls and tool results."""
        messages, begun = list[ChatMessage](), action.tokens[: int(np.argmax(action.own))]
        for number, text in enumerate(action.intermediate_texts):
            calls = [call for call in action.calls if call.round == number]
            messages += self.calling_turn(policy, text, calls, begun if number == 0 else begun[:0])
        return [*messages, {"role": "assistant", "content": action.text}]

    def calling_turn(self, policy: str, text: str, calls: Sequence[ToolCall], begun: TokenIds) -> list[ChatMessage]:
        """Convert a turn with tool calls, and their results, to messages.

        Args:
            begun: tokens at the start of the turn that a teammate wrote.
        """
        format = self.formats[policy]
        if len(begun):
            text = spelled(format.tokenizer, begun.tolist()) + text
        return list(exchange(text if format.remote else self.tool_format(policy).content(text), calls))

    @staticmethod
    def _recorded(format: ChatFormat, ids: TokenIds, new: Sequence[ChatMessage]) -> TokenIds:
        """Return the recorded ids for new messages to an endpoint, encoded for the local tokenizer, [T].

        The endpoint itself receives messages.
        """
        try:
            found = appended(format, PROBES[0][0], new, ended=end_of(format, ids))
        except CANNOT_RENDER as error:
            found = NotExact(raised(error))
        if not isinstance(found, NotExact):
            return found
        return _encoded(format, [str(message["content"]) for message in new])

    def check_continues(self, policy: str) -> None:
        """Check for a chat template with support for multi-turn conversations.

        Raises:
            ValueError: the chat template cannot render a conversation with the agent's own turns.
        """
        try:
            for messages, new in PROBES:
                render_messages(self.formats[policy], [*messages, *new])
        except CANNOT_RENDER as error:
            raise ValueError(
                f"its chat template cannot show a conversation ({raised(error)}); set models.….chat_template to a "
                'Jinja file that can, or memory = "none"'
            ) from error

    def count(self, policy: str, text: str) -> int:
        """Return the number of tokens in a text without special tokens."""
        return len(self.formats[policy].tokenizer.encode(text, add_special_tokens=False))

    def pieces(self, policy: str, tokens: TokenIds, begin: int = 0) -> tuple[str, ...]:
        """Return the text of each token; a token with part of a character becomes a replacement sign.

        Args:
            begin: number of leading tokens to decode individually, without the context of a turn.
        """
        tokenizer, control = self.formats[policy].tokenizer, set(self.formats[policy].tokenizer.added_tokens_decoder)
        return tuple(
            str(tokenizer.decode([token])) if place < begin or token in control else spelled_inside(tokenizer, [token])
            for place, token in enumerate(tokens.tolist())
        )

    def spelled(self, policy: str, tokens: TokenIds, inside: bool = False) -> str:
        """Decode sampled tokens, without control tokens and the end of the turn.

        Args:
            inside: whether the tokens continue an earlier text.
        """
        format = self.formats[policy]
        spell = spelled_inside if inside and not format.remote else spelled
        return spell(format.tokenizer, _unended(format, tokens).tolist())

    def ids(self, policy: str, text: str) -> TokenIds:
        """Return the ids of a text inside a turn, [T]; control tokens in it stay plain text."""
        return _encoded(self.formats[policy], [text])

    def quotable(self, policy: str, other: str, tokens: TokenIds, text: str) -> TokenIds | None:
        """Return the ids sampled by policy ``other`` if ``policy`` can reuse the same ids for the text, else None.

        Both policies need the same tokenizer, and the tokens must decode to exactly ``text``.
        """
        theirs = self.formats[other]
        kept = _unended(theirs, tokens)
        whole = str(theirs.tokenizer.decode(kept.tolist()))
        return kept if not theirs.remote and whole == text and self._speak_alike(policy, other) else None

    def _speak_alike(self, policy: str, other: str) -> bool:
        """Return whether the models of two policies share a vocabulary."""
        mine, theirs = self.formats[policy].tokenizer, self.formats[other].tokenizer
        return mine is theirs or mine.get_vocab() == theirs.get_vocab()

    def option(self, policy: str, text: str) -> TokenIds:
        """Return the ids of a whole assistant turn with ``text``, including the end of turn, [T].

        If the template changes the text or adds reasoning, the result is the text itself and the end-of-turn token.

        Raises:
            ValueError: the policy's model has no end-of-turn token.
        """
        format = self.formats[policy]
        if not format.stop_ids:
            raise ValueError(f"policy {policy!r} has no end-of-turn token, without which options cannot be compared")
        known = self._options.setdefault(policy, {})
        ids = known[text] if text in known else _option(format, text)
        if len(text) <= LONGEST_OPTION and len(known) < MOST_OPTIONS:
            known[text] = ids
        return ids.copy()

    def option_text(self, policy: str, tokens: TokenIds) -> str:
        """Return the text of a turn from :meth:`option`, without the header from the chat template."""
        one, other = (self.option(policy, text) for text in PROBE_OPTIONS)
        begins = common(one, other)
        own = tokens[begins:] if common(one[:begins], tokens) == begins else tokens
        return self.spelled(policy, own)

    def context(self, policy: str) -> int:
        """Return the context length for prompt and action together, in tokens."""
        return self.formats[policy].context

    def clip(self, policy: str, text: str, tokens: int) -> str:
        """Truncate a text to ``tokens`` tokens, with a note about the number of omitted characters."""
        tokenizer, head = self.formats[policy].tokenizer, text[: tokens * MOST_CHARACTERS]
        ids = tokenizer.encode(head, add_special_tokens=False, split_special_tokens=True)
        if len(ids) <= tokens and len(head) == len(text):
            return text
        kept = str(tokenizer.decode(ids[:tokens]))
        return f"{kept}\n[{len(text) - len(kept)} more characters left out]"

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], begun: TokenIds = NOTHING
    ) -> Sequence[ToolCall]:
        """Parse the tool calls in a sampled turn, in the format of the model's chat template.

        Raises:
            ValueError: the chat template has no tool format.
        """
        return self.tool_format(policy).read(tokens, tools, begun)

    def call_end(self, policy: str) -> str | Said:
        """Return the stop string after a tool call; "" if the template has no distinctive marker.

        If the model supports reasoning, the stop string does not apply inside reasoning.
        """
        format = self.formats[policy]
        if policy not in self._call_ends:
            try:
                closing = CallFormat.of(format).closing.strip()
            except ValueError:
                closing = ""
            closing = closing if any(map(str.isalpha, closing)) else ""
            marked = closing and thinks(format)
            self._call_ends[policy] = Said(closing, begins_thought(format)) if marked else closing
        return self._call_ends[policy]

    def tool_response(
        self, policy: str, turn: TokenIds, messages: Sequence[ChatMessage], calls: Sequence[ToolCall],
        tools: Sequence[Tool],
    ) -> TokenIds | NotExact:  # fmt: skip
        """Return the template's ids after a turn with tool calls: the results and the start of the next turn, [T].

        Returns :class:`NotExact` if the template changes the conversation so far.

        Raises:
            ValueError: the chat template has no tool format.
        """
        format = self.formats[policy]
        if format.remote:  # only for the record: the endpoint receives messages
            return _encoded(format, [call.output for call in calls])
        said, answers = messages[: -len(calls)], messages[-len(calls) :]
        changed = rewritten(format, said, answers, tools)
        if changed:
            return changed
        ended = end_of(format, turn)
        found = self.tool_format(policy).response(calls, ended)
        if not isinstance(found, NotExact):
            return found
        try:  # the format's probe contains calls without text; the template may treat only that case differently
            return appended(format, said, answers, tools, ended)
        except CANNOT_RENDER:
            return found

    def grammar(self, policy: str, chat: Chat) -> Grammar | None:
        """Return the grammar for the answer to a client's chat; None without a constraint.

        Raises:
            ValueError: the policy does not support grammars, or this grammar cannot be enforced.
        """
        if chat.constraint is None:
            return None
        if self.formats[policy].unheld:
            raise ValueError(self.formats[policy].unheld)
        grammar = grammar_of(self.formats[policy], chat, chat.constraint)
        self.check_grammar(policy, grammar, thoughts=False)
        return grammar

    def check_grammar(self, policy: str, grammar: Grammar, thoughts: bool = True) -> None:
        """Check for a grammar that the policy supports.

        Args:
            thoughts: whether the grammar may cover whole turns that start with reasoning.

        Raises:
            ValueError: the policy cannot enforce the grammar; the message gives the reason.
        """
        format = self.formats[policy]
        if format.unheld:
            raise ValueError(format.unheld)
        if not thoughts and begins_thought(format):
            raise ValueError(
                "its chat template begins every turn with a thought, and an answer of a given form has none; turn that "
                "off (template_options.enable_thinking = false)"
            )
        Grammars.of(format.tokenizer, format.stop_ids).check(grammar)

    def tool_format(self, policy: str) -> ToolFormat:
        """Return the tool-call format for a policy's model.

        Raises:
            ValueError: its chat template has no tool format.
        """
        if policy not in self._tool_formats:
            format = self.formats[policy]
            self._tool_formats[policy] = ToolFormat.of(format.tokenizer, format.template_options, format.stop_ids)
        return self._tool_formats[policy]

    def response_prefix(self, policy: str, other: Action) -> int:
        """Return how many leading tokens from another agent's action can start a turn of ``policy``.

        Raises:
            ValueError: the policy is remote, or the tokenizers differ.
        """
        mine, theirs = self.formats[policy], self.formats[other.policy]
        if mine.remote:
            raise ValueError(
                f"a turn of policy {policy!r} cannot begin with what {other.agent!r} wrote: it is remote, and "
                "endpoints take whole messages alone; pass it on as a message (sees=[…])"
            )
        if not self._speak_alike(policy, other.policy):
            raise ValueError(
                f"a turn of policy {policy!r} cannot begin with what {other.agent!r} wrote: their tokenizers differ; "
                "pass it on as a message (sees=[…])"
            )
        return len(other.tokens) - bool(len(other.tokens) and other.tokens[-1] in theirs.stop_ids)


@dataclass(frozen=True, slots=True)
class _Texts:
    observation: str
    seen: tuple[Message, ...]


def _encoded(format: ChatFormat, texts: Sequence[str]) -> TokenIds:
    """Return the ids of texts inside a turn, [T]; control tokens in them stay plain text."""
    return np.array(encoded_inside(format.tokenizer, marked(format.tokenizer, "\n".join(texts))), np.int32)


def _unended(format: ChatFormat, tokens: TokenIds) -> TokenIds:
    """Return the ids of a turn without its end-of-turn token."""
    return tokens[: len(tokens) - (end_of(format, tokens) is not None)]


def _option(format: ChatFormat, text: str) -> TokenIds:
    """Return the ids of a whole turn with the given text, [T]."""
    try:
        found = NotExact("") if format.remote else whole_turn(format, [ASKED], {"role": "assistant", "content": text})
    except CANNOT_RENDER as error:
        found = NotExact(raised(error))
    if isinstance(found, NotExact) or text not in found.text or any(mark in found.text for mark in MARKS):
        said = _encoded(format, [text]) if format.remote else begun_turn(format, text, own=False)
        return np.array([*said, *format.stop_ids[:1]], np.int32)
    return found.ids


def _shorten(tokenizer: PreTrainedTokenizerBase, texts: _Texts, excess: int, cut: Cut) -> _Texts | None:
    """Cut up to ``excess`` tokens from the first text open to cuts; None if no text remains."""
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
    """Return the text without ``excess`` tokens; always shorter than before."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    kept = max(0, len(ids) - excess)
    shorter = str(tokenizer.decode(ids[len(ids) - kept :] if cut.keep == "end" else ids[:kept])) if kept else ""
    return shorter if len(shorter) < len(text) else ""  # part of a character can decode to a text of the same length
