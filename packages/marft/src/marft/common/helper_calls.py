"""Helper calls inside an agent's turn: question, reply and position in the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HelperCallRecord:
    """One call to a helper in the middle of a turn.

    The reply becomes part of the agent's own turn, as if the agent had written it.

    >>> HelperCallRecord("verify", "3 + 4 = 8?", "<reply>no</reply>", place=36).reply
    '<reply>no</reply>'

    Args:
        kind: kind of helper.
        question: question as the agent wrote it.
        reply: text inserted into the turn, including the marks around it.
        place: position of the reply in the turn's text, in characters, not counting a prefix that a teammate wrote.
        round: turn of the action: number of earlier tool rounds.
        tokens: tokens that the helper wrote.
        seconds: duration of the call.
        error: reason for a missing answer; "" on success.
    """

    kind: str
    question: str
    reply: str
    place: int
    round: int = 0
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""


def strip_helper_replies(text: str, helper_calls: Sequence[HelperCallRecord]) -> str:
    """Return a turn's text without the replies of helpers.

    >>> strip_helper_replies("3 + 4 = <reply>7</reply>, so 7", [HelperCallRecord("verify", "", "<reply>7</reply>", 8)])
    '3 + 4 = , so 7'
    """
    parts, at = [], 0
    for call in helper_calls:
        parts.append(text[at : call.place])
        at = call.place + len(call.reply)
    return "".join([*parts, text[at:]])
