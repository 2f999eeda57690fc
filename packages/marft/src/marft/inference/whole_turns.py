"""Encoding of a given turn as sampled token ids.

A turn may start with more than its text. GLM-4 starts a turn with a newline, gpt-oss with a channel. SentencePiece
tokenizers add a space before a text, which no turn contains. Therefore the chat is rendered twice: up to the start of
sampling, and with the turn. The difference is the turn's ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from marft.agents.rendering import ChatMessage, NotExact
from marft.common.thoughts import MARKS
from marft.common.types import TokenIds, Tool
from marft.inference.messages import ASKED, LAST, SAID, Format, common, marked_text
from marft.models.control_tokens import encoded, encoded_inside, marked, unmarked
from marft.models.templates import CANNOT_RENDER

OTHERWISE = "its chat template shows a turn that was said otherwise than one that begins"


class WholeTurn(NamedTuple):
    """Turn as rendered by a template after its prompt.

    Args:
        ids: up to the end of the turn, [T].
        text: full text that the template adds for the turn.
        ended: whether the template itself ends the turn with the last id. If not, the last id is the model's first stop
            id.
    """

    ids: TokenIds
    text: str
    ended: bool


def whole_turn(
    format: Format, messages: Sequence[ChatMessage], said: ChatMessage, tools: Sequence[Tool] = (),
    after: Sequence[ChatMessage] = (LAST,),
) -> WholeTurn | NotExact:  # fmt: skip
    """Return a turn in its sampled form after ``messages``.

    Reasoning tags in the turn are encoded as tokens; other control tokens stay plain text.

    Args:
        said: the turn, as an assistant message.
        after: messages after the turn, for templates that end a turn only when a message follows.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot render the turn.
    """
    begun, shown = marked_text(format, messages, tools), marked_text(format, [*messages, said], tools, False, own=1)
    if not shown.startswith(begun):
        return NotExact(OTHERWISE)
    tail, whole, ids = shown[len(begun) :], _ids(format, shown), _new(format, begun, shown)
    ends = np.flatnonzero(np.isin(ids, format.stop_ids))
    if len(ends):
        return WholeTurn(ids[: int(ends[0]) + 1], unmarked(tail), True)
    followed = _ids(format, marked_text(format, [*messages, said, *after], tools, own=1 + len(after)))
    at = common(whole, followed)
    ended = at == len(whole) < len(followed) and followed[at] in format.stop_ids
    end = followed[at : at + 1] if ended else format.stop_ids[:1]
    return WholeTurn(np.array([*ids, *end], np.int32), unmarked(tail), ended)


def begun_turn(format: Format, text: str, own: bool) -> TokenIds:
    """Return the ids of a text at the start of a turn, after the template's turn header, [T].

    A header that contains reasoning is omitted.

    Args:
        own: whether the model itself wrote the text. If so, reasoning tags in it are encoded as tokens.
    """
    begun = marked_text(format, [ASKED])
    return _new(format, begun, begun + _header(format) + marked(format.tokenizer, text, own=own))


def _header(format: Format) -> str:
    """Return the template's text between a prompt and the text of a turn; "" if it contains reasoning."""
    try:
        found = whole_turn(format, [ASKED], SAID)
    except CANNOT_RENDER:
        return ""
    before, said, _ = ("", "", "") if isinstance(found, NotExact) else found.text.partition(SAID["content"])
    return before if said and not any(mark in before for mark in MARKS) else ""


def _new(format: Format, begun: str, shown: str) -> TokenIds:
    """Return the ids of the text in ``shown`` after its prefix ``begun``, [T]."""
    before, whole = _ids(format, begun), _ids(format, shown)
    if common(before, whole) == len(before):
        return whole[len(before) :]
    return np.array(encoded_inside(format.tokenizer, shown[len(begun) :]), np.int32)


def _ids(format: Format, text: str) -> TokenIds:
    return np.array(encoded(format.tokenizer, text), np.int32)
