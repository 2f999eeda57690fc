"""Prompts through a model's own chat template, with context-window cuts that are chosen and counted."""

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

MOST_OPTIONS, LONGEST_OPTION = 4096, 256  # of a policy, in characters, whose ids are kept
PROBE_OPTIONS = ("1", "Yes.")  # which begin with nothing alike
MOST_CHARACTERS = 32  # of a token, about: what is longer than so many times the tokens wanted need not be counted


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How one model is spoken to: its tokenizer, its template's options, and its context in tokens.

    A ``remote`` one is spoken to in messages; the tokenizer is its reader's. ``unheld`` is why its texts cannot be held
    to a grammar, if so.
    """

    tokenizer: PreTrainedTokenizerBase
    context: int
    template_options: Mapping[str, object]
    stop_ids: tuple[int, ...] = ()
    remote: bool = False
    unheld: str = ""


class ChatRenderer:
    """Renders for every policy of a team in the chat format of its model.

    Args:
        formats: by policy name.
    """

    def __init__(self, formats: Mapping[str, ChatFormat]) -> None:
        self.formats = formats
        self._tool_formats: dict[str, ToolFormat] = {}
        self._call_ends: dict[str, str | Said] = {}  # by policy
        self._spellings: dict[str, Callable[..., Spelling]] = {}
        self._begun: dict[str, bool] = {}  # by policy, whether its template begins each turn with a thought
        self._changes: dict[tuple[str, bool], NotExact | None] = {}  # by policy, and whether it has tools
        self._options: dict[str, dict[str, TokenIds]] = {}  # by policy and text

    def render(
        self, policy: str, profile: Profile, observation: str, seen: Sequence[Message], *, reserve: int, cut: Cut
    ) -> Prompt:
        """Render the messages of a profile, an observation and what is seen, by the model's own chat template."""
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
        """The ids of a conversation, up to where the agent's next turn begins."""
        try:
            return render_messages(self.formats[policy], messages, tools)
        except CANNOT_RENDER as error:
            raise ValueError(f"its chat template cannot show the conversation: {raised(error)}") from error

    def go_on(
        self, policy: str, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> TokenIds | NotExact:  # fmt: skip
        """What the template puts after a conversation that ends with a turn, where it can be continued exactly."""
        format = self.formats[policy]
        if format.remote:
            return self._recorded(format, ids, new)
        key = policy, bool(tools)
        if key not in self._changes:
            self._changes[key] = changes_turns(format, tools)
        return self._changes[key] or continue_ids(format, ids, messages, new, tools)

    def thought(self, policy: str, text: str, begun: str = "") -> int:
        """How many of the first characters of a turn's text are a thought. The template may have begun it."""
        if policy not in self._begun:
            format = self.formats[policy]
            self._begun[policy] = not format.remote and begins_thought(format)
        return thought(text, thinking_after(begun, self._begun[policy]) and not self.formats[policy].remote)

    def opening(self, policy: str, text: str) -> TokenIds:
        """Return the ids of a text that a client begins a turn with, after what the chat template begins each turn
        with. What looks like a control token is text, but for marks of thoughts: it is the agent's own turn."""
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
        """What spells a turn while it is sampled."""
        format = self.formats[policy]
        if policy not in self._spellings:
            self._spellings[policy] = spelling_of(format.tokenizer, format.stop_ids)
        thinking = thinking_after(begun, begins_thought(format))
        certain = partial(self.tool_format(policy).after(begun).certain, dropped=drops) if tools else len
        return LiveText(self._spellings[policy](bool(begun)), stops, thinking if drops else None, certain)

    def turn(self, policy: str, action: Action) -> list[ChatMessage]:
        """An action as messages of a chat: what it said, called and was answered."""
        messages, begun = list[ChatMessage](), action.tokens[: int(np.argmax(action.own))]
        for number, text in enumerate(action.intermediate_texts):
            calls = [call for call in action.calls if call.round == number]
            messages += self.calling_turn(policy, text, calls, begun if number == 0 else begun[:0])
        return [*messages, {"role": "assistant", "content": action.text}]

    def calling_turn(self, policy: str, text: str, calls: Sequence[ToolCall], begun: TokenIds) -> list[ChatMessage]:
        """A turn that called tools, after what a teammate began it with, and what they answered, as messages."""
        format = self.formats[policy]
        if len(begun):
            text = spelled(format.tokenizer, begun.tolist()) + text
        return list(exchange(text if format.remote else self.tool_format(policy).content(text), calls))

    @staticmethod
    def _recorded(format: ChatFormat, ids: TokenIds, new: Sequence[ChatMessage]) -> TokenIds:
        """What is recorded of a conversation with an endpoint, which is sent messages: as its reader would have it."""
        try:
            found = appended(format, PROBES[0][0], new, ended=end_of(format, ids))
        except CANNOT_RENDER as error:
            found = NotExact(raised(error))
        if not isinstance(found, NotExact):
            return found
        return _encoded(format, [str(message["content"]) for message in new])

    def check_continues(self, policy: str) -> None:
        """
        Raises:
            ValueError: the chat template of a policy's model cannot show an agent what it said itself.
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
        """Tokens of a text, on its own."""
        return len(self.formats[policy].tokenizer.encode(text, add_special_tokens=False))

    def pieces(self, policy: str, tokens: TokenIds, begin: int = 0) -> tuple[str, ...]:
        """The text of each token; one of half a character shows as a sign for that."""
        tokenizer, control = self.formats[policy].tokenizer, set(self.formats[policy].tokenizer.added_tokens_decoder)
        return tuple(
            str(tokenizer.decode([token])) if place < begin or token in control else spelled_inside(tokenizer, [token])
            for place, token in enumerate(tokens.tolist())
        )

    def spelled(self, policy: str, tokens: TokenIds, inside: bool = False) -> str:
        """The text of sampled tokens, without control tokens and the end of the turn."""
        format = self.formats[policy]
        spell = spelled_inside if inside and not format.remote else spelled
        return spell(format.tokenizer, _unended(format, tokens).tolist())

    def ids(self, policy: str, text: str) -> TokenIds:
        """The ids of a text in the middle of a turn; what looks like a control token is text."""
        return _encoded(self.formats[policy], [text])

    def quotable(self, policy: str, other: str, tokens: TokenIds, text: str) -> TokenIds | None:
        """The ids of a text that policy ``other`` has sampled, where ``policy`` has the same tokenizer and they spell
        no more than the text."""
        theirs = self.formats[other]
        kept = _unended(theirs, tokens)
        whole = str(theirs.tokenizer.decode(kept.tolist()))
        return kept if not theirs.remote and whole == text and self._speak_alike(policy, other) else None

    def _speak_alike(self, policy: str, other: str) -> bool:
        """Whether the models of two policies have the same tokens."""
        mine, theirs = self.formats[policy].tokenizer, self.formats[other].tokenizer
        return mine is theirs or mine.get_vocab() == theirs.get_vocab()

    def option(self, policy: str, text: str) -> TokenIds:
        """Return the ids of a whole turn that says ``text``, as the chat template shows one, end of turn included, [T].

        Where the template shows it otherwise than it is, or with a thought, it is the text itself and the end of turn.
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
        """Return what a turn says that :meth:`option` made: without what its chat template begins each turn with."""
        one, other = (self.option(policy, text) for text in PROBE_OPTIONS)
        begins = common(one, other)
        own = tokens[begins:] if common(one[:begins], tokens) == begins else tokens
        return self.spelled(policy, own)

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

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], begun: TokenIds = NOTHING
    ) -> Sequence[ToolCall]:
        """The tools that a sampled turn calls, read in the format of the model's own template."""
        return self.tool_format(policy).read(tokens, tools, begun)

    def call_end(self, policy: str) -> str | Said:
        """What the template puts after a call, where that is a mark and no sign that calls hold themselves. Where the
        model thinks, it is one that counts outside of thoughts."""
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
        """What the template puts after a turn that called tools (their answers, and the start of the next turn), where
        it leaves the conversation as it stands."""
        format = self.formats[policy]
        if format.remote:  # for the record alone: the endpoint is sent messages
            return _encoded(format, [call.output for call in calls])
        said, answers = messages[: -len(calls)], messages[-len(calls) :]
        changed = rewritten(format, said, answers, tools)
        if changed:
            return changed
        ended = end_of(format, turn)
        found = self.tool_format(policy).response(calls, ended)
        if not isinstance(found, NotExact):
            return found
        try:  # the format's probe says nothing beside its calls, which alone may be what is shown otherwise
            return appended(format, said, answers, tools, ended)
        except CANNOT_RENDER:
            return found

    def grammar(self, policy: str, chat: Chat) -> Grammar | None:
        """What the answer to a client's chat must be, as one that its model's tokenizer can be held to.

        Raises:
            ValueError: none can.
        """
        if chat.constraint is None:
            return None
        if self.formats[policy].unheld:
            raise ValueError(self.formats[policy].unheld)
        grammar = grammar_of(self.formats[policy], chat, chat.constraint)
        self.check_grammar(policy, grammar, thoughts=False)
        return grammar

    def check_grammar(self, policy: str, grammar: Grammar, thoughts: bool = True) -> None:
        """
        Args:
            thoughts: whether the grammar may be one of whole turns that begin with a thought.

        Raises:
            ValueError: the texts of a policy cannot be held to a grammar; the message says why.
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
    """Return the ids of texts in the middle of a turn, [T]; what looks like a control token is text."""
    return np.array(encoded_inside(format.tokenizer, marked(format.tokenizer, "\n".join(texts))), np.int32)


def _unended(format: ChatFormat, tokens: TokenIds) -> TokenIds:
    """Return the ids of a turn without the token that ends it."""
    return tokens[: len(tokens) - (end_of(format, tokens) is not None)]


def _option(format: ChatFormat, text: str) -> TokenIds:
    """Return the ids of a whole turn that says a text, [T]."""
    try:
        found = NotExact("") if format.remote else whole_turn(format, [ASKED], {"role": "assistant", "content": text})
    except CANNOT_RENDER as error:
        found = NotExact(raised(error))
    if isinstance(found, NotExact) or text not in found.text or any(mark in found.text for mark in MARKS):
        said = _encoded(format, [text]) if format.remote else begun_turn(format, text, own=False)
        return np.array([*said, *format.stop_ids[:1]], np.int32)
    return found.ids


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
