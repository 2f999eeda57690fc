"""An action's tokens as segments: stretches that were each sampled after a context of their own.

Nearly always there is one, after the prompt. Where a chat template changes what stands in a chat already, nothing can
be appended to its ids: the chat is rendered anew, and what is sampled then begins another segment of the same action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Restart:
    """Where an action went on from a chat that was rendered anew, and not from its tokens so far.

    Args:
        at: the first token of the action that was sampled after ``context``.
        turns: how many of the action's turns the context shows, with what tools answered.

    >>> Restart(at=5, context=np.array([7, 8, 9], np.int32), turns=1, reason="its chat template drops thoughts").at
    5
    """

    at: int
    context: npt.NDArray[np.int32]  # [C]
    turns: int
    reason: str


class Segment(NamedTuple):
    """Tokens ``start`` to ``stop`` of an action, which were sampled after ``context``."""

    context: npt.NDArray[np.int32]  # [C]
    start: int
    stop: int


def segments_of(prompt: npt.NDArray[np.int32], size: int, restarts: Sequence[Restart]) -> tuple[Segment, ...]:
    """The segments of an action of ``size`` tokens, one more than restarts.

    >>> [(s.start, s.stop) for s in segments_of(np.array([1]), 9, [Restart(5, np.array([1]), 1, "")])]
    [(0, 5), (5, 9)]
    """
    stops = [*(restart.at for restart in restarts), size]
    begun = [(prompt, 0), *((restart.context, restart.at) for restart in restarts)]
    return tuple(Segment(context, start, stop) for (context, start), stop in zip(begun, stops, strict=True))
