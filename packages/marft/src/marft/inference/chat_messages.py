"""Conversion from chat messages to token ids through the model's own chat template.

This module knows one model's template and no agents. :mod:`marft.agents.prompt_messages` defines the messages, and
writes the messages of an observation. :class:`~marft.inference.renderer.ChatRenderer` calls these functions for each
policy of a team.

*Roles.* :mod:`~marft.inference.template_messages` adapts a chat to what the template takes.

*Continuation.* A conversation is rendered once, at its start. After that, only the template's continuation is appended,
and sampled tokens stay unchanged. If the template changes earlier text, an exact continuation does not exist.
:class:`InexactContinuation` then gives the reason.

*Given turns.* A turn may start with more than its text. GLM-4 starts a turn with a newline, gpt-oss with a channel.
SentencePiece tokenizers add a space before a text, which no turn contains. Therefore the chat is rendered twice: up to
the start of sampling, and with the turn. The difference is the turn's ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.agents.prompt_messages import ChatMessage, InexactContinuation
from marft.common.reasoning import DELIMITER_PAIRS, DELIMITERS, split_reasoning
from marft.common.texts import format_error
from marft.common.token_data import common_prefix_length
from marft.common.types import TokenIds, Tool
from marft.inference.template_messages import TemplateMessage, adapt_chat, detect_roles, template_source
from marft.models.chat_templates import RENDER_ERRORS
from marft.models.control_tokens import encode_continuation, encode_text, escape_control_tokens, remove_escapes

PROBE_ANSWER = {"role": "assistant", "content": "Yes."}
PROBE_QUESTION = {"role": "user", "content": "?"}
PROBE_FOLLOW_UP = {"role": "user", "content": "More?"}
PROBE_LAST = {"role": "user", "content": "Last?"}
PROBE_CHATS = (
    ((PROBE_QUESTION, PROBE_ANSWER), (PROBE_LAST,)),
    ((PROBE_QUESTION, PROBE_ANSWER, PROBE_FOLLOW_UP, PROBE_ANSWER), (PROBE_LAST,)),
)  # a conversation, and the new messages
REWRITES_HISTORY = "its chat template rewrites what came before once more is said"
DIFFERENT_END = "the turn ended otherwise than its chat template ends one"
RENDERED_DIFFERENTLY = "its chat template shows a turn that was said otherwise than one that begins"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Chat format for one model: tokenizer, template options and context length in tokens.

    If ``remote`` is true, the policy is behind an endpoint. It receives messages, and ``tokenizer`` is the local
    tokenizer that records its text. ``grammar_error`` gives the reason why grammars are not supported; "" if they are.
    """

    tokenizer: PreTrainedTokenizerBase
    context: int
    template_options: Mapping[str, Any]
    stop_ids: tuple[int, ...] = ()
    remote: bool = False
    grammar_error: str = ""


def tokenize_messages(
    format: ChatFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), add_generation_prompt: bool = True
) -> TokenIds:
    """Tokenize a whole chat, [T]. Control tokens come only from the template; those in message text stay plain text.

    Args:
        add_generation_prompt: whether the result ends with the start of the assistant's next turn.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the chat.
    """
    text = render_escaped(format, messages, tools, add_generation_prompt)
    return np.array(encode_text(format.tokenizer, text), np.int32)


def render_text(
    format: ChatFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), add_generation_prompt: bool = True
) -> str:
    """Render a whole chat as text; raises the same errors as :func:`tokenize_messages`."""
    return str(
        format.tokenizer.apply_chat_template(
            _adapt_roles(format, messages),
            tools=[tool_schema(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **format.template_options,
        )
    )


def render_escaped(
    format: ChatFormat,
    messages: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
    begin: bool = True,
    own_index: int = 0,
) -> str:
    """Render a whole chat as text with escaped control tokens; its ids equal :func:`tokenize_messages`.

    Only control tokens in message text are escaped.

    Args:
        own_index: index from the end of the message that is the model's own turn. Reasoning tags in it remain tokens.
            0: no message.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the chat.
    """
    tokenizer, chat = format.tokenizer, _adapt_roles(format, messages)
    tool_schemas: list[Any] = [tool_schema(tool) for tool in tools]
    return str(
        tokenizer.apply_chat_template(
            [
                escape_control_tokens(tokenizer, message, is_own_text=index == len(chat) - own_index)
                for index, message in enumerate(chat)
            ],
            tools=escape_control_tokens(tokenizer, tool_schemas) or None,
            tokenize=False,
            add_generation_prompt=begin,
            **escape_control_tokens(tokenizer, dict(format.template_options)),
        )
    )


def encode_new_messages(
    format: ChatFormat,
    ids: TokenIds,
    messages: Sequence[ChatMessage],
    new: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
) -> TokenIds | InexactContinuation:
    """Return the template's ids after a sampled turn: the ``new`` messages and the start of the next turn, [T].

    The continuation is exact under two conditions. The template shows the last turn at its sampled position with its
    complete text. The template changes no earlier text once ``new`` follows. Whitespace around a turn's text may
    differ: the sampled ids stay.

    Args:
        ids: the conversation so far, [T].
        messages: the same conversation as messages; the last one is the assistant's sampled turn.
        new: messages of users, tools and the system, or turns of other agents.

    Returns:
        Token ids [T], or the reason why no exact continuation exists.
    """
    try:
        rendered = _render_with_turn(format, messages, tools)
        if isinstance(rendered, InexactContinuation):
            return rendered
        return encode_appended(format, messages, new, tools, find_end_id(format, ids))
    except RENDER_ERRORS as error:
        return InexactContinuation(f"its chat template cannot show the conversation: {format_error(error)}")


def check_history(
    format: ChatFormat, messages: Sequence[ChatMessage], new: Sequence[ChatMessage], tools: Sequence[Tool]
) -> InexactContinuation | None:
    """Return why a template rewrites a conversation when ``new`` follows; None for an unchanged conversation.

    The check compares rendered text without tokenization. The result is also None if the template cannot render the
    conversation.

    Args:
        messages: the conversation; the last one is the assistant's sampled turn.
    """
    try:
        rendered = _render_with_turn(format, messages, tools)
        if isinstance(rendered, InexactContinuation):
            return rendered
        text, offset = rendered
        after = render_text(format, [*messages, *new], tools)
    except RENDER_ERRORS:
        return None
    stops = [str(format.tokenizer.decode([stop])) for stop in format.stop_ids]
    end = min((text.find(stop, offset) + len(stop) for stop in stops if stop in text[offset:]), default=len(text))
    return None if after.startswith(text[:end]) else InexactContinuation(REWRITES_HISTORY)


def _render_with_turn(
    format: ChatFormat, messages: Sequence[ChatMessage], tools: Sequence[Tool]
) -> tuple[str, int] | InexactContinuation:
    """Render a conversation with a sampled last turn; return the text and the end offset of the turn's content.

    Returns :class:`InexactContinuation` if the template shows the turn differently.
    """
    before = render_text(format, messages[:-1], tools)
    rendered = render_text(format, messages, tools, add_generation_prompt=False)
    content = str(messages[-1].get("content") or "").strip()
    if not rendered.startswith(before):
        return InexactContinuation(RENDERED_DIFFERENTLY)
    offset = len(rendered) - len(rendered[len(before) :].lstrip())
    has_key = detect_roles(format.tokenizer, format.template_options).reasoning_key
    parts = [part.strip() for part in split_reasoning(content)] if has_key else [content]
    for part in parts:  # delimiters may stand between the parts
        start = rendered.find(part, offset) if has_key else offset
        if start < 0 or not rendered.startswith(part, start):
            return InexactContinuation("its chat template leaves out parts of what was said")
        offset = start + len(part)
    return rendered, offset


def encode_appended(
    format: ChatFormat,
    messages: Sequence[ChatMessage],
    new: Sequence[ChatMessage],
    tools: Sequence[Tool] = (),
    end_id: int | None = None,
) -> TokenIds | InexactContinuation:
    """Return the ids after ``messages`` once ``new`` follows; the last message is the assistant's, [T].

    The first end-of-turn token after the start of a turn ends it. Some templates add it only when a message follows, as
    the start of the next turn. Others end the whole chat with a second one.

    Args:
        end_id: end-of-turn token already present in the turn. If None, the result starts with one.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the messages.
    """
    prompt_ids = tokenize_messages(format, messages[:-1], tools)
    before = tokenize_messages(format, messages, tools, add_generation_prompt=False)
    start = common_prefix_length(prompt_ids, before)
    after = tokenize_messages(format, [*messages, *new], tools)
    ends = start + np.flatnonzero(np.isin(before[start:], format.stop_ids))
    end = int(ends[0]) if len(ends) else len(before)
    if common_prefix_length(before, after) < min(end + 1, len(before)):
        return InexactContinuation(REWRITES_HISTORY)
    if end == len(after) or after[end] not in format.stop_ids:
        return InexactContinuation("its chat template puts no end of turn after what was said")
    if end_id is not None and end_id != after[end]:
        return InexactContinuation(DIFFERENT_END)
    return after[end + (end_id is not None) :]


def find_end_id(format: ChatFormat, turn: TokenIds) -> int | None:
    """Return the turn's last id if it ends a turn; None for a truncated turn."""
    last = int(turn[-1]) if len(turn) else None
    return last if last in format.stop_ids else None


def check_continuation(format: ChatFormat, tools: Sequence[Tool] = ()) -> InexactContinuation | None:
    """Return why no conversation with this template can be continued exactly; None if possible. Renders probes."""
    answers = [PROBE_ANSWER["content"]]
    if supports_reasoning(format):
        begins, ends = reasoning_tags(format)
        start = "" if starts_with_reasoning(format) else f"{begins}\n"
        answers.append(f"{start}Hm.\n{ends}\n\n{PROBE_ANSWER['content']}")
    problems = [_check_probes(format, tools, answer) for answer in answers]
    return problems[0] if all(problems) else None


def _check_probes(format: ChatFormat, tools: Sequence[Tool], answer: str) -> InexactContinuation | None:
    """Return why a conversation with this answer cannot be continued exactly; None if possible."""
    for messages, new in PROBE_CHATS:
        chat = [{**message, "content": answer} if message is PROBE_ANSWER else message for message in messages]
        continuation = encode_new_messages(format, np.array(format.stop_ids[:1], np.int32), chat, new, tools)
        if isinstance(continuation, InexactContinuation):
            return InexactContinuation(continuation.reason, always=True)
    return None


def starts_with_reasoning(format: ChatFormat) -> bool:
    """Return whether a template starts each turn with reasoning."""
    return render_text(format, [PROBE_QUESTION]).rstrip().endswith(tuple(begins for begins, _ in DELIMITER_PAIRS))


def supports_reasoning(format: ChatFormat) -> bool:
    """Return whether a template supports reasoning: it contains a delimiter of reasoning."""
    template = template_source(format.tokenizer)
    return any(tag in template for tags in DELIMITER_PAIRS for tag in tags)


def reasoning_tags(format: ChatFormat) -> tuple[str, str]:
    """Return the model's start and end tag for reasoning.

    The first match wins: the tag at the start of each turn, tags in the template or tokenizer, and ``<think>`` as the
    default.
    """
    prompt, template = render_text(format, [PROBE_QUESTION]).rstrip(), template_source(format.tokenizer)
    tokens = {token.content for token in format.tokenizer.added_tokens_decoder.values()}
    for tags in DELIMITER_PAIRS:
        if prompt.endswith(tags[0]):
            return tags
    return next(
        (tags for tags in DELIMITER_PAIRS if any(tag in template or tag in tokens for tag in tags)), DELIMITER_PAIRS[0]
    )


def tool_schema(tool: Tool) -> dict[str, object]:
    """Return a tool in the JSON format for chat templates and chat endpoints."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _adapt_roles(format: ChatFormat, messages: Sequence[ChatMessage]) -> list[TemplateMessage]:
    """Adapt the chat to the roles supported by the template."""
    return adapt_chat(messages, detect_roles(format.tokenizer, format.template_options))


class EncodedTurn(NamedTuple):
    """Turn as rendered by a template after its prompt.

    Args:
        ids: up to the end of the turn, [T].
        text: full text that the template adds for the turn.
        has_template_end: whether the template itself ends the turn with the last id. If not, the last id is the model's
            first stop id.
    """

    ids: TokenIds
    text: str
    has_template_end: bool


def encode_full_turn(
    format: ChatFormat,
    messages: Sequence[ChatMessage],
    turn: ChatMessage,
    tools: Sequence[Tool] = (),
    following: Sequence[ChatMessage] = (PROBE_LAST,),
) -> EncodedTurn | InexactContinuation:
    """Return a turn in its sampled form after ``messages``.

    Reasoning tags in the turn are encoded as tokens; other control tokens stay plain text.

    Args:
        turn: the turn, as an assistant message.
        following: messages after the turn, for templates that end a turn only when a message follows.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the turn.
    """
    prompt = render_escaped(format, messages, tools)
    rendered = render_escaped(format, [*messages, turn], tools, False, own_index=1)
    if not rendered.startswith(prompt):
        return InexactContinuation(RENDERED_DIFFERENTLY)
    tail, ids = rendered[len(prompt) :], _encode_new_text(format, prompt, rendered)
    ends = np.flatnonzero(np.isin(ids, format.stop_ids))
    if len(ends):
        return EncodedTurn(ids[: int(ends[0]) + 1], remove_escapes(tail), True)
    continued = render_escaped(format, [*messages, turn, *following], tools, own_index=1 + len(following))
    followed = _encode(format, continued)
    rendered_ids = _encode(format, rendered)
    end_index = common_prefix_length(rendered_ids, followed)
    has_end = end_index == len(rendered_ids) < len(followed) and followed[end_index] in format.stop_ids
    end = followed[end_index : end_index + 1] if has_end else format.stop_ids[:1]
    return EncodedTurn(np.array([*ids, *end], np.int32), remove_escapes(tail), has_end)


def encode_turn_start(format: ChatFormat, text: str, is_own_text: bool) -> TokenIds:
    """Return the ids of a text at the start of a turn, after the template's turn header, [T].

    A header that contains reasoning is omitted.

    Args:
        is_own_text: whether the model itself wrote the text. If so, reasoning tags in it are encoded as tokens.
    """
    prompt = render_escaped(format, [PROBE_QUESTION])
    turn = _turn_header(format) + escape_control_tokens(format.tokenizer, text, is_own_text=is_own_text)
    return _encode_new_text(format, prompt, prompt + turn)


def _turn_header(format: ChatFormat) -> str:
    """Return the template's text between a prompt and the text of a turn; "" if it contains reasoning."""
    try:
        turn = encode_full_turn(format, [PROBE_QUESTION], PROBE_ANSWER)
    except RENDER_ERRORS:
        return ""
    before, content, _ = (
        ("", "", "") if isinstance(turn, InexactContinuation) else turn.text.partition(PROBE_ANSWER["content"])
    )
    return before if content and not any(mark in before for mark in DELIMITERS) else ""


def _encode_new_text(format: ChatFormat, prompt: str, rendered: str) -> TokenIds:
    """Return the ids of the text in ``rendered`` after its prefix ``prompt``, [T]."""
    before, rendered_ids = _encode(format, prompt), _encode(format, rendered)
    if common_prefix_length(before, rendered_ids) == len(before):
        return rendered_ids[len(before) :]
    return np.array(encode_continuation(format.tokenizer, rendered[len(prompt) :]), np.int32)


def _encode(format: ChatFormat, text: str) -> TokenIds:
    return np.array(encode_text(format.tokenizer, text), np.int32)
