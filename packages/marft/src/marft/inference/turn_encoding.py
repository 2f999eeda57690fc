"""Encoding of a given turn as sampled token ids.

A turn may start with more than its text. GLM-4 starts a turn with a newline, gpt-oss with a channel. SentencePiece
tokenizers add a space before a text, which no turn contains. Therefore the chat is rendered twice: up to the start of
sampling, and with the turn. The difference is the turn's ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from marft.agents.prompt_messages import ChatMessage, NotExact
from marft.common.reasoning import DELIMITERS
from marft.common.types import TokenIds, Tool
from marft.inference.chat_messages import (
    PROBE_ANSWER,
    PROBE_LAST,
    PROBE_QUESTION,
    ChatTemplateFormat,
    common_prefix_length,
    render_escaped,
)
from marft.models.chat_templates import RENDER_ERRORS
from marft.models.control_tokens import encode_continuation, encode_text, escape_control_tokens, remove_escapes

RENDERED_DIFFERENTLY = "its chat template shows a turn that was said otherwise than one that begins"


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
    format: ChatTemplateFormat,
    messages: Sequence[ChatMessage],
    turn: ChatMessage,
    tools: Sequence[Tool] = (),
    following: Sequence[ChatMessage] = (PROBE_LAST,),
) -> EncodedTurn | NotExact:
    """Return a turn in its sampled form after ``messages``.

    Reasoning tags in the turn are encoded as tokens; other control tokens stay plain text.

    Args:
        turn: the turn, as an assistant message.
        following: messages after the turn, for templates that end a turn only when a message follows.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the turn.
    """
    prompt, rendered = (
        render_escaped(format, messages, tools),
        render_escaped(format, [*messages, turn], tools, False, own_index=1),
    )
    if not rendered.startswith(prompt):
        return NotExact(RENDERED_DIFFERENTLY)
    tail, rendered_ids, ids = (
        rendered[len(prompt) :],
        _encode(format, rendered),
        _encode_new_text(format, prompt, rendered),
    )
    ends = np.flatnonzero(np.isin(ids, format.stop_ids))
    if len(ends):
        return EncodedTurn(ids[: int(ends[0]) + 1], remove_escapes(tail), True)
    followed = _encode(
        format, render_escaped(format, [*messages, turn, *following], tools, own_index=1 + len(following))
    )
    end_index = common_prefix_length(rendered_ids, followed)
    has_end = end_index == len(rendered_ids) < len(followed) and followed[end_index] in format.stop_ids
    end = followed[end_index : end_index + 1] if has_end else format.stop_ids[:1]
    return EncodedTurn(np.array([*ids, *end], np.int32), remove_escapes(tail), has_end)


def encode_turn_start(format: ChatTemplateFormat, text: str, is_own_text: bool) -> TokenIds:
    """Return the ids of a text at the start of a turn, after the template's turn header, [T].

    A header that contains reasoning is omitted.

    Args:
        is_own_text: whether the model itself wrote the text. If so, reasoning tags in it are encoded as tokens.
    """
    prompt = render_escaped(format, [PROBE_QUESTION])
    return _encode_new_text(
        format,
        prompt,
        prompt + _turn_header(format) + escape_control_tokens(format.tokenizer, text, is_own_text=is_own_text),
    )


def _turn_header(format: ChatTemplateFormat) -> str:
    """Return the template's text between a prompt and the text of a turn; "" if it contains reasoning."""
    try:
        turn = encode_full_turn(format, [PROBE_QUESTION], PROBE_ANSWER)
    except RENDER_ERRORS:
        return ""
    before, content, _ = ("", "", "") if isinstance(turn, NotExact) else turn.text.partition(PROBE_ANSWER["content"])
    return before if content and not any(mark in before for mark in DELIMITERS) else ""


def _encode_new_text(format: ChatTemplateFormat, prompt: str, rendered: str) -> TokenIds:
    """Return the ids of the text in ``rendered`` after its prefix ``prompt``, [T]."""
    before, rendered_ids = _encode(format, prompt), _encode(format, rendered)
    if common_prefix_length(before, rendered_ids) == len(before):
        return rendered_ids[len(before) :]
    return np.array(encode_continuation(format.tokenizer, rendered[len(prompt) :]), np.int32)


def _encode(format: ChatTemplateFormat, text: str) -> TokenIds:
    return np.array(encode_text(format.tokenizer, text), np.int32)
