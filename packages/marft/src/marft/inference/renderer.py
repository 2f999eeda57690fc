"""Prompt rendering with the model's own chat template, including recorded context-window cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.agents.chat import Chat
from marft.agents.prompt_messages import (
    NO_TOKENS,
    ChatMessage,
    InexactContinuation,
    PromptTooLongError,
    TruncationPolicy,
    build_messages,
    tool_call_messages,
)
from marft.agents.streaming import Detokenizer, TextStream
from marft.common.errors import UserError
from marft.common.reasoning import DELIMITERS, StopString, ends_in_reasoning, measure_reasoning
from marft.common.texts import format_error
from marft.common.token_data import Grammar, common_prefix_length
from marft.common.types import Action, AgentProfile, Prompt, TokenIds, Tool, ToolCall
from marft.config.interfaces.channel import Message
from marft.inference.call_grammar import CallFormat, build_grammar
from marft.inference.chat_messages import (
    PROBE_CHATS,
    PROBE_QUESTION,
    ChatFormat,
    EncodedTurn,
    check_continuation,
    check_history,
    encode_appended,
    encode_full_turn,
    encode_new_messages,
    encode_turn_start,
    find_end_id,
    reasoning_tags,
    starts_with_reasoning,
    supports_reasoning,
    tokenize_messages,
)
from marft.inference.detokenizer import detokenizer_factory
from marft.inference.grammar_masking import GrammarCompiler
from marft.inference.template_messages import detect_roles
from marft.inference.tool_format import ToolFormat
from marft.models.chat_templates import RENDER_ERRORS
from marft.models.control_tokens import decode_continuation, decode_text, encode_continuation, escape_control_tokens

# limits of the per-policy cache of option ids; the length is in characters
MAX_CACHED_OPTIONS, MAX_OPTION_LENGTH = 4096, 256
PROBE_OPTIONS = ("1", "Yes.")  # two texts without a common prefix
MAX_TOKEN_CHARACTERS = 32  # generous bound on characters per token; longer text certainly exceeds the token limit


class ChatRenderer:
    """Prompt renderer for every policy in a team, with the chat format of the policy's model.

    Args:
        formats: by policy name.
    """

    def __init__(self, formats: Mapping[str, ChatFormat]) -> None:
        self.formats = formats
        self._tool_formats: dict[str, ToolFormat] = {}
        self._call_ends: dict[str, str | StopString] = {}  # by policy
        self._detokenizers: dict[str, Callable[..., Detokenizer]] = {}
        self._starts_reasoning: dict[str, bool] = {}  # by policy: whether its template starts each turn with reasoning
        self._continuation_errors: dict[
            tuple[str, bool], InexactContinuation | None
        ] = {}  # by policy and whether it has tools
        self._options: dict[str, dict[str, TokenIds]] = {}  # by policy and text

    def render(
        self,
        policy: str,
        profile: AgentProfile,
        observation: str,
        seen: Sequence[Message],
        *,
        reserve: int,
        cut: TruncationPolicy,
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
        texts = _PromptTexts(observation, tuple(seen))
        chat = build_messages(profile, texts.observation, texts.messages)
        ids = tokenize_messages(format, chat, profile.tools)
        full_length = len(ids)
        while len(ids) > budget:
            shorter = _cut_texts(format.tokenizer, texts, len(ids) - budget, cut)
            if shorter is None:
                raise PromptTooLongError(
                    f"agent {profile.role!r}: its rollout observation has {len(ids)} tokens, but the context of "
                    f"{format.context} leaves {budget} beside max_new_tokens = {reserve}; shorten the instructions, "
                    "give it fewer tools, lower max_new_tokens, raise the model's context_length, or allow cuts "
                    "(agents.context.truncate)"
                )
            texts = shorter
            chat = build_messages(profile, texts.observation, texts.messages)
            ids = tokenize_messages(format, chat, profile.tools)
        return Prompt(ids, full_length - len(ids), tuple(chat), profile.tools)

    def tokenize_prompt(self, policy: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> TokenIds:
        """Return the ids of a conversation, up to the start of the agent's next turn, [T].

        Raises:
            UserError: the chat template cannot render the conversation.
        """
        try:
            return tokenize_messages(self.formats[policy], messages, tools)
        except RENDER_ERRORS as error:
            raise UserError(f"its chat template cannot show the conversation: {format_error(error)}") from error

    def continue_chat(
        self,
        policy: str,
        ids: TokenIds,
        messages: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:
        """Return the template's ids after a conversation with a completed turn, [T].

        Returns :class:`InexactContinuation` if no exact continuation exists. For a remote policy, the ids are only a
        record.
        """
        format = self.formats[policy]
        if format.remote:
            return self._encode_record(format, ids, new)
        key = policy, bool(tools)
        if key not in self._continuation_errors:
            self._continuation_errors[key] = check_continuation(format, tools)
        return self._continuation_errors[key] or encode_new_messages(format, ids, messages, new, tools)

    def reasoning_length(self, policy: str, text: str, prefix: str = "") -> int:
        """Return the number of leading characters in a turn's text that belong to reasoning.

        Args:
            prefix: text that precedes ``text`` in the turn. If empty, the template may have opened the reasoning.
        """
        if policy not in self._starts_reasoning:
            format = self.formats[policy]
            self._starts_reasoning[policy] = not format.remote and starts_with_reasoning(format)
        is_inside = ends_in_reasoning(prefix, self._starts_reasoning[policy])
        return measure_reasoning(text, None if self.formats[policy].remote else is_inside)

    def encode_prefix(self, policy: str, text: str) -> TokenIds:
        """Return the ids for a client's prefix of the assistant turn, [T], after the template's own turn header.

        Control tokens in the prefix stay plain text. Reasoning tags are an exception, because the prefix is part of the
        agent's own turn.

        Raises:
            UserError: the policy is remote, or its template starts with reasoning that the prefix does not close.
        """
        format = self.formats[policy]
        if format.remote:
            raise UserError("it is behind an endpoint, which takes whole messages alone")
        if starts_with_reasoning(format):
            begins, ends = reasoning_tags(format)
            if ends not in text:
                raise UserError(
                    "its chat template begins every turn with a thought, which the text would be part of; end it in "
                    f"the text ({ends}), or turn thoughts off (template_options.enable_thinking = false)"
                )
            text = text.lstrip().removeprefix(begins)
        return encode_turn_start(format, text, is_own_text=True)

    def text_stream(
        self, policy: str, stops: Sequence[str | StopString], drops: bool, tools: bool, prefix: str = ""
    ) -> TextStream:
        """Return a streaming detokenizer for a turn.

        Args:
            stops: stop strings.
            drops: whether to hide reasoning.
            tools: whether tool calls may follow, which the stream must hold back.
            prefix: text that precedes the sampled tokens in the turn.
        """
        format = self.formats[policy]
        if policy not in self._detokenizers:
            self._detokenizers[policy] = detokenizer_factory(format.tokenizer, format.stop_ids)
        thinking = ends_in_reasoning(prefix, starts_with_reasoning(format))
        final_length: Callable[[str], int] = len
        if tools:
            final_length = partial(self.tool_format(policy).with_prefix(prefix).final_length, without_reasoning=drops)
        return TextStream(self._detokenizers[policy](bool(prefix)), stops, thinking if drops else None, final_length)

    def turn_messages(self, policy: str, action: Action) -> list[ChatMessage]:
        """Convert an action to chat messages: text, tool calls and tool results."""
        messages, prefix = list[ChatMessage](), action.tokens[: int(np.argmax(action.own_mask))]
        for number, text in enumerate(action.intermediate_texts):
            calls = [call for call in action.calls if call.round == number]
            messages += self.tool_call_messages(policy, text, calls, prefix if number == 0 else prefix[:0])
        return [*messages, {"role": "assistant", "content": action.text}]

    def tool_call_messages(
        self, policy: str, text: str, calls: Sequence[ToolCall], prefix: TokenIds
    ) -> list[ChatMessage]:
        """Convert a turn with tool calls, and their results, to messages.

        Args:
            prefix: tokens at the start of the turn that a teammate wrote.
        """
        format = self.formats[policy]
        if len(prefix):
            text = decode_text(format.tokenizer, prefix.tolist()) + text
        return list(tool_call_messages(text if format.remote else self.tool_format(policy).text_content(text), calls))

    @staticmethod
    def _encode_record(format: ChatFormat, ids: TokenIds, new: Sequence[ChatMessage]) -> TokenIds:
        """Return the recorded ids for new messages to an endpoint, encoded for the local tokenizer, [T].

        The endpoint itself receives messages.
        """
        with suppress(*RENDER_ERRORS):
            encoded = encode_appended(format, PROBE_CHATS[0][0], new, end_id=find_end_id(format, ids))
            if not isinstance(encoded, InexactContinuation):
                return encoded
        return _encode_texts(format, [str(message["content"]) for message in new])

    def check_multi_turn(self, policy: str) -> None:
        """Check for a chat template with support for multi-turn conversations.

        Raises:
            UserError: the chat template cannot render a conversation with the agent's own turns.
        """
        try:
            for messages, new in PROBE_CHATS:
                tokenize_messages(self.formats[policy], [*messages, *new])
        except RENDER_ERRORS as error:
            raise UserError(
                f"its chat template cannot show a conversation ({format_error(error)}); set models.….chat_template to "
                'a Jinja file that can, or memory = "none"'
            ) from error

    def count_tokens(self, policy: str, text: str) -> int:
        """Return the number of tokens in a text without special tokens."""
        return len(self.formats[policy].tokenizer.encode(text, add_special_tokens=False))

    def token_texts(self, policy: str, tokens: TokenIds, begin: int = 0) -> tuple[str, ...]:
        """Return the text of each token; a token with part of a character becomes a replacement sign.

        Args:
            begin: number of leading tokens to decode individually, without the context of a turn.
        """
        tokenizer, control = self.formats[policy].tokenizer, set(self.formats[policy].tokenizer.added_tokens_decoder)
        return tuple(
            str(tokenizer.decode([token]))
            if index < begin or token in control
            else decode_continuation(tokenizer, [token])
            for index, token in enumerate(tokens.tolist())
        )

    def decode_tokens(self, policy: str, tokens: TokenIds, inside: bool = False) -> str:
        """Decode sampled tokens, without control tokens and the end of the turn.

        Args:
            inside: whether the tokens continue an earlier text.
        """
        format = self.formats[policy]
        decode = decode_continuation if inside and not format.remote else decode_text
        return decode(format.tokenizer, _strip_end(format, tokens).tolist())

    def encode_text(self, policy: str, text: str) -> TokenIds:
        """Return the ids of a text inside a turn, [T]; control tokens in it stay plain text."""
        return _encode_texts(self.formats[policy], [text])

    def shared_tokens(self, policy: str, source_policy: str, tokens: TokenIds, text: str) -> TokenIds | None:
        """Return the ids sampled by ``source_policy`` if ``policy`` can reuse the same ids for the text, else None.

        Both policies need the same tokenizer, and the tokens must decode to exactly ``text``.
        """
        source_format = self.formats[source_policy]
        content_ids = _strip_end(source_format, tokens)
        decoded = str(source_format.tokenizer.decode(content_ids.tolist()))
        reusable = not source_format.remote and decoded == text and self._share_vocabulary(policy, source_policy)
        return content_ids if reusable else None

    def _share_vocabulary(self, policy: str, second: str) -> bool:
        """Return whether the models of two policies share a vocabulary."""
        tokenizer, other_tokenizer = self.formats[policy].tokenizer, self.formats[second].tokenizer
        return tokenizer is other_tokenizer or tokenizer.get_vocab() == other_tokenizer.get_vocab()

    def tokenize_option(self, policy: str, text: str) -> TokenIds:
        """Return the ids of a whole assistant turn with ``text``, including the end of turn, [T].

        If the template changes the text or adds reasoning, the result is the text itself and the end-of-turn token.

        Raises:
            UserError: the policy's model has no end-of-turn token.
        """
        format = self.formats[policy]
        if not format.stop_ids:
            raise UserError(f"policy {policy!r} has no end-of-turn token, without which options cannot be compared")
        cache = self._options.setdefault(policy, {})
        ids = cache[text] if text in cache else _encode_option(format, text)
        if len(text) <= MAX_OPTION_LENGTH and len(cache) < MAX_CACHED_OPTIONS:
            cache[text] = ids
        return ids.copy()

    def decode_option(self, policy: str, tokens: TokenIds) -> str:
        """Return the text of a turn from :meth:`tokenize_option`, without the header from the chat template."""
        first, second = (self.tokenize_option(policy, text) for text in PROBE_OPTIONS)
        header_length = common_prefix_length(first, second)
        has_header = common_prefix_length(first[:header_length], tokens) == header_length
        return self.decode_tokens(policy, tokens[header_length:] if has_header else tokens)

    def context_length(self, policy: str) -> int:
        """Return the context length for prompt and action together, in tokens."""
        return self.formats[policy].context

    def clip(self, policy: str, text: str, tokens: int) -> str:
        """Truncate a text to ``tokens`` tokens, with a note about the number of omitted characters."""
        tokenizer, head = self.formats[policy].tokenizer, text[: tokens * MAX_TOKEN_CHARACTERS]
        ids = tokenizer.encode(head, add_special_tokens=False, split_special_tokens=True)
        if len(ids) <= tokens and len(head) == len(text):
            return text
        truncated = str(tokenizer.decode(ids[:tokens]))
        return f"{truncated}\n[{len(text) - len(truncated)} more characters left out]"

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], prefix: TokenIds = NO_TOKENS
    ) -> Sequence[ToolCall]:
        """Parse the tool calls in a sampled turn, in the format of the model's chat template.

        Raises:
            UserError: the chat template has no tool format.
        """
        return self.tool_format(policy).parse_calls(tokens, tools, prefix)

    def call_end(self, policy: str) -> str | StopString:
        """Return the stop string after a tool call; "" if the template has no distinctive marker.

        If the model supports reasoning, the stop string does not apply inside reasoning.
        """
        format = self.formats[policy]
        if policy not in self._call_ends:
            try:
                closing = CallFormat.from_format(format).end.strip()
            except ValueError:
                closing = ""
            closing = closing if any(map(str.isalpha, closing)) else ""
            skips_reasoning = closing and supports_reasoning(format)
            self._call_ends[policy] = (
                StopString(closing, starts_with_reasoning(format), *reasoning_tags(format))
                if skips_reasoning
                else closing
            )
        return self._call_ends[policy]

    def tool_response(
        self,
        policy: str,
        turn: TokenIds,
        messages: Sequence[ChatMessage],
        calls: Sequence[ToolCall],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:
        """Return the template's ids after a turn with tool calls: the results and the start of the next turn, [T].

        Returns :class:`InexactContinuation` if the template changes the conversation so far.

        Raises:
            UserError: the chat template has no tool format.
        """
        format = self.formats[policy]
        if format.remote:  # only for the record: the endpoint receives messages
            return _encode_texts(format, [call.output for call in calls])
        history, answers = messages[: -len(calls)], messages[-len(calls) :]
        rewrite_error = check_history(format, history, answers, tools)
        if rewrite_error:
            return rewrite_error
        end_id = find_end_id(format, turn)
        encoded: TokenIds | InexactContinuation = InexactContinuation("its results have the numbers of their calls")
        if not detect_roles(format.tokenizer, format.template_options).named_call_ids:
            encoded = self.tool_format(policy).encode_response(calls, end_id)
        if not isinstance(encoded, InexactContinuation):
            return encoded
        try:  # the format's probe contains calls without text; the template may treat only that case differently
            return encode_appended(format, history, answers, tools, end_id)
        except RENDER_ERRORS:
            return encoded

    def grammar(self, policy: str, chat: Chat) -> Grammar | None:
        """Return the grammar for the answer to a client's chat; None without a constraint.

        Raises:
            UserError: the policy does not support grammars, or this grammar cannot be enforced.
        """
        if chat.constraint is None:
            return None
        if self.formats[policy].grammar_error:
            raise UserError(self.formats[policy].grammar_error)
        grammar = build_grammar(self.formats[policy], chat, chat.constraint)
        self.check_grammar(policy, grammar, reasoning=False)
        return grammar

    def check_grammar(self, policy: str, grammar: Grammar, reasoning: bool = True) -> None:
        """Check for a grammar that the policy supports.

        Args:
            reasoning: whether the grammar may cover whole turns that start with reasoning.

        Raises:
            UserError: the policy cannot enforce the grammar; the message gives the reason.
        """
        format = self.formats[policy]
        if format.grammar_error:
            raise UserError(format.grammar_error)
        if not reasoning and starts_with_reasoning(format):
            raise UserError(
                "its chat template begins every turn with a thought, and an answer of a given form has none; turn that "
                "off (template_options.enable_thinking = false)"
            )
        GrammarCompiler.for_tokenizer(format.tokenizer, format.stop_ids).check_grammar(grammar)

    def tool_format(self, policy: str) -> ToolFormat:
        """Return the tool-call format for a policy's model.

        Raises:
            UserError: its chat template has no tool format.
        """
        if policy not in self._tool_formats:
            self._tool_formats[policy] = ToolFormat.from_format(self.formats[policy])
        return self._tool_formats[policy]

    def response_prefix(self, policy: str, action: Action) -> int:
        """Return how many leading tokens from another agent's action can start a turn of ``policy``.

        Raises:
            UserError: the policy is remote, or the tokenizers differ.
        """
        own_format, source_format = self.formats[policy], self.formats[action.policy]
        if own_format.remote:
            raise UserError(
                f"a turn of policy {policy!r} cannot begin with what {action.agent!r} wrote: it is remote, and "
                "endpoints take whole messages alone; pass it on as a message (sees=[…])"
            )
        if not self._share_vocabulary(policy, action.policy):
            raise UserError(
                f"a turn of policy {policy!r} cannot begin with what {action.agent!r} wrote: their tokenizers differ; "
                "pass it on as a message (sees=[…])"
            )
        return len(action.tokens) - bool(len(action.tokens) and action.tokens[-1] in source_format.stop_ids)


@dataclass(frozen=True, slots=True)
class _PromptTexts:
    observation: str
    messages: tuple[Message, ...]


def _encode_texts(format: ChatFormat, texts: Sequence[str]) -> TokenIds:
    """Return the ids of texts inside a turn, [T]; control tokens in them stay plain text."""
    return np.array(
        encode_continuation(format.tokenizer, escape_control_tokens(format.tokenizer, "\n".join(texts))), np.int32
    )


def _strip_end(format: ChatFormat, tokens: TokenIds) -> TokenIds:
    """Return the ids of a turn without its end-of-turn token."""
    return tokens[: len(tokens) - (find_end_id(format, tokens) is not None)]


def _encode_option(format: ChatFormat, text: str) -> TokenIds:
    """Return the ids of a whole turn with the given text, [T]."""
    if format.remote:
        text_ids = _encode_texts(format, [text])
    else:
        with suppress(*RENDER_ERRORS):
            turn = encode_full_turn(format, [PROBE_QUESTION], {"role": "assistant", "content": text})
            if (
                isinstance(turn, EncodedTurn)
                and text in turn.text
                and not any(mark in turn.text for mark in DELIMITERS)
            ):
                return turn.ids
        text_ids = encode_turn_start(format, text, is_own_text=False)
    return np.array([*text_ids, *format.stop_ids[:1]], np.int32)


def _cut_texts(
    tokenizer: PreTrainedTokenizerBase, texts: _PromptTexts, excess: int, cut: TruncationPolicy
) -> _PromptTexts | None:
    """Cut up to ``excess`` tokens from the first text open to cuts; None if no text remains."""
    if cut.target == "none":
        return None
    message = next((index for index, message in enumerate(texts.messages) if message.text), None)
    if texts.observation and (cut.target == "observation" or message is None):
        return replace(texts, observation=_cut_text(tokenizer, texts.observation, excess, cut))
    if message is None:
        return None
    shorter = replace(texts.messages[message], text=_cut_text(tokenizer, texts.messages[message].text, excess, cut))
    return replace(texts, messages=(*texts.messages[:message], shorter, *texts.messages[message + 1 :]))


def _cut_text(tokenizer: PreTrainedTokenizerBase, text: str, excess: int, cut: TruncationPolicy) -> str:
    """Return the text without ``excess`` tokens; always shorter than before."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    num_kept = max(0, len(ids) - excess)
    kept = ids[len(ids) - num_kept :] if cut.keep == "end" else ids[:num_kept]
    shorter = str(tokenizer.decode(kept)) if num_kept else ""
    return shorter if len(shorter) < len(text) else ""  # part of a character can decode to a text of the same length
