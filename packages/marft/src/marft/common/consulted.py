"""What an agent asked a helper in the middle of a turn, and where the answer stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Consultation:
    """One question to a helper. Its answer stands in the agent's own turn, as if the agent went on with it.

    >>> Consultation("verify", "3 + 4 = 8?", "<reply>no</reply>", place=36).reply
    '<reply>no</reply>'

    Args:
        kind: of helper.
        question: as the agent wrote it.
        reply: what stands in the turn, with the marks around it.
        place: characters of what the agent's turn says before it, where no teammate began that.
        round: the turn of its action: how often the agent had used tools before.
        tokens: that the helper wrote.
        seconds: that it took.
        error: why there is no answer; "" where there is one.
    """

    kind: str
    question: str
    reply: str
    place: int
    round: int = 0
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""


def own_words(text: str, consultations: Sequence[Consultation]) -> str:
    """A turn's text without what helpers wrote in it.

    >>> own_words("3 + 4 = <reply>7</reply>, so 7", [Consultation("verify", "", "<reply>7</reply>", 8)])
    '3 + 4 = , so 7'
    """
    parts, at = [], 0
    for one in consultations:
        parts.append(text[at : one.place])
        at = one.place + len(one.reply)
    return "".join([*parts, text[at:]])
