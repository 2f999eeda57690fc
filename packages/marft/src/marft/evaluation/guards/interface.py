"""Interface of guards and their findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem found by a guard in the newest steps.

    Args:
        sentence: the observation, its meaning, and the setting to change.
        well: the last step before the problem, as far as the guard can tell.
    """

    sentence: str
    well: int


Look = Callable[[History, GuardSettings], Finding | None]


@dataclass(frozen=True, slots=True)
class Guard:
    """Named pure function of the metric history.

    Args:
        name: also the key of the guard's threshold.
        look: returns a finding or None.
        collapse: True if the run may be rolled back for this finding.
    """

    name: str
    look: Look
    collapse: bool
