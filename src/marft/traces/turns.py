"""A recorded turn as the token ids that a model would have sampled for it: its text, its calls, the end of the turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from marft.engines.messages import begins_thought, common, render_messages
from marft.engines.renderer import ChatFormat, ChatRenderer
from marft.game.rendering import ChatMessage, exchange
from marft.models.templates import CANNOT_RENDER
from marft.texts import raised
from marft.thoughts import BEGINS, ENDS
from marft.traces.record import TracedTurn, UnreadableError
from marft.types import TokenIds, Tool

Thinking = Literal["keep", "drop"]


def turn_ids(
    renderer: ChatRenderer, policy: str, chat: Sequence[ChatMessage], tools: Sequence[Tool], turn: TracedTurn,
    thinking: Thinking,
) -> TokenIds:  # fmt: skip
    """The ids of a turn as a policy's model says it, [T]. Its end is the template's, where the turn was whole.

    A turn that calls tools is what the chat template makes of its calls; one that only says something is its text.

    Args:
        chat: what it is said to.
        tools: that the chat is rendered with.

    Raises:
        UnreadableError: the model's chat template cannot show it, or it calls tools that are not there.
    """
    format = renderer.formats[policy]
    if turn.calls and not tools:
        raise UnreadableError("it calls tools, and the agent is offered none")
    text = _thought(format, turn, thinking) + turn.text
    try:
        ids = _calling(format, chat, tools, turn, text) if turn.calls else renderer.option(policy, text)
    except UnreadableError:
        raise
    except CANNOT_RENDER as error:
        raise UnreadableError(f"the model cannot say it: {raised(error)}") from error
    return ids if turn.whole or not len(ids) or ids[-1] not in format.stop_ids else ids[:-1]


def _thought(format: ChatFormat, turn: TracedTurn, thinking: Thinking) -> str:
    """What stands before the text: the thought, where it is kept, or the end of one that the template begins."""
    begun = not format.remote and begins_thought(format)
    if turn.thought and thinking == "keep":
        return ("" if begun else f"{BEGINS}\n") + f"{turn.thought}\n{ENDS}\n\n"
    return f"\n{ENDS}\n\n" if begun else ""


def _calling(
    format: ChatFormat, chat: Sequence[ChatMessage], tools: Sequence[Tool], turn: TracedTurn, text: str
) -> TokenIds:  # fmt: skip
    said = exchange(text, turn.calls)[0]
    begun = render_messages(format, chat, tools)
    whole = render_messages(format, [*chat, said], tools, begin=False)
    if common(begun, whole) < len(begun):
        raise UnreadableError("its chat template shows a turn that calls tools otherwise than one that begins")
    ends = np.flatnonzero(np.isin(whole[len(begun) :], format.stop_ids))
    if not len(ends):
        raise UnreadableError("its chat template puts no end of turn after a turn that calls tools")
    ids = whole[len(begun) : len(begun) + int(ends[0]) + 1]
    shown = str(format.tokenizer.decode(ids.tolist()))
    if not all(call.name in shown for call in turn.calls) or text.strip() not in shown:
        raise UnreadableError("its chat template leaves out parts of a turn that calls tools")
    return ids
