"""Interface of guards and their findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History


@dataclass(frozen=True, slots=True)
class GuardAlert:
    """Problem found by a guard in the newest steps.

    Args:
        message: the observation, its meaning, and the setting to change.
        last_good_step: the last step before the problem, as far as the guard can tell.
    """

    message: str
    last_good_step: int


GuardCheck = Callable[[History, GuardSettings], GuardAlert | None]


@dataclass(frozen=True, slots=True)
class Guard:
    """Named pure function of the metric history.

    Args:
        name: also the key of the guard's threshold.
        check: returns a finding or None.
        is_collapse: True if the run may be rolled back for this finding.
    """

    name: str
    check: GuardCheck
    is_collapse: bool
