"""Segments of an action's tokens: each segment was sampled from its own context.

Nearly every action has one segment, which follows the prompt. If a chat template changes earlier parts of a chat,
nothing can be appended to its ids. The chat is then rendered again, and the next sampled tokens begin a new segment of
the same action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class PromptReset:
    """Point where an action continued from a newly rendered chat instead of its own tokens.

    Args:
        at: index of the first token that was sampled after ``context``.
        context: ids of the rendered chat, [C].
        turns: number of the action's turns in the context, tool replies included.
        reason: human-readable cause.

    >>> PromptReset(at=5, context=np.array([7, 8, 9], np.int32), turns=1, reason="its chat template drops thoughts").at
    5
    """

    at: int
    context: npt.NDArray[np.int32]  # [C]
    turns: int
    reason: str


class Segment(NamedTuple):
    """Tokens ``start`` to ``stop`` in an action, sampled after ``context``, [C]."""

    context: npt.NDArray[np.int32]  # [C]
    start: int
    stop: int


def split_segments(prompt: npt.NDArray[np.int32], size: int, resets: Sequence[PromptReset]) -> tuple[Segment, ...]:
    """Return the segments for an action with ``size`` tokens: one more than restarts.

    >>> [(s.start, s.stop) for s in split_segments(np.array([1]), 9, [PromptReset(5, np.array([1]), 1, "")])]
    [(0, 5), (5, 9)]

    Args:
        prompt: ids before the first segment, [P].
    """
    stops = [*(reset.at for reset in resets), size]
    starts = [(prompt, 0), *((reset.context, reset.at) for reset in resets)]
    return tuple(Segment(context, start, stop) for (context, start), stop in zip(starts, stops, strict=True))
