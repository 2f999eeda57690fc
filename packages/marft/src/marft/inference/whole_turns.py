"""A turn that is given as text, as the token ids that its model has to sample for it.

A turn may begin with more than its text: GLM-4 begins one with a newline, gpt-oss with a channel. Tokenizers of
SentencePiece's kind put a space before a text, which stands in no turn. So the chat is rendered up to where sampling
begins, and once more with the turn; the ids of the turn are what is new.
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
    """A turn as a template shows it after the prompt that it is sampled from.

    Args:
        ids: up to the end of the turn, [T].
        text: of all that the template puts there.
        ended: the template itself ends the turn so; else it is the first token that ends one.
    """

    ids: TokenIds
    text: str
    ended: bool


def whole_turn(
    format: Format, messages: Sequence[ChatMessage], said: ChatMessage, tools: Sequence[Tool] = (),
    after: Sequence[ChatMessage] = (LAST,),
) -> WholeTurn | NotExact:  # fmt: skip
    """Return a turn as the model has to sample it after ``messages``.

    Marks of thoughts in it are the tokens that they are, and other control tokens are text.

    Args:
        said: the turn, as a message of the assistant.
        after: what may follow on it, for templates that end a turn only then.

    Raises:
        TemplateError, ValueError, TypeError: the template cannot show it.
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
    """Return the ids of a text at the beginning of a turn, after what the template begins each turn with, [T]. Of that
    nothing is taken where it holds a thought.

    Args:
        own: the model's own words: marks of thoughts in them are tokens.
    """
    begun = marked_text(format, [ASKED])
    return _new(format, begun, begun + _header(format) + marked(format.tokenizer, text, own=own))


def _header(format: Format) -> str:
    """Return what a chat template puts between a prompt and the text of a turn; "" where that is a thought, too."""
    try:
        found = whole_turn(format, [ASKED], SAID)
    except CANNOT_RENDER:
        return ""
    before, said, _ = ("", "", "") if isinstance(found, NotExact) else found.text.partition(SAID["content"])
    return before if said and not any(mark in before for mark in MARKS) else ""


def _new(format: Format, begun: str, shown: str) -> TokenIds:
    """Return the ids of what a text has beyond one that it begins with, [T]."""
    before, whole = _ids(format, begun), _ids(format, shown)
    if common(before, whole) == len(before):
        return whole[len(before) :]
    return np.array(encoded_inside(format.tokenizer, shown[len(begun) :]), np.int32)


def _ids(format: Format, text: str) -> TokenIds:
    return np.array(encoded(format.tokenizer, text), np.int32)
