"""What a guard is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History


@dataclass(frozen=True, slots=True)
class Finding:
    """What a guard found in the newest steps.

    Args:
        sentence: what was seen, what it means, and what to change.
        well: the last step at which all was well, as far as it can tell.
    """

    sentence: str
    well: int


Look = Callable[[History, GuardSettings], Finding | None]


@dataclass(frozen=True, slots=True)
class Guard:
    """A pure function of the metrics so far, under a name that is the key of its threshold too."""

    name: str
    look: Look
    collapse: bool  # whether a run may go back for it
