"""Guard against repetitive text without better results."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import drifts
from marft.evaluation.guards.gains import earns_more
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """Report an agent that repeats itself more than at first.

    Condition: share of repeated 4-grams over the newest window − share over the first window > threshold,
    significantly, for any agent. In addition, accuracy (or else reward) must not exceed that of the first window.
    """
    if earns_more(history, settings.window):
        return None
    for drift in drifts(history, "repetition", settings.window):
        if drift.sure and drift.rise > settings.repetition:
            return Finding(
                f"{drift.owner}: it repeats {drift.now:.0%} of its 4-grams, and {drift.first:.0%} at first, and no "
                "more is solved for it: look at what it writes (`marft show RUN`), and at which term pays for it; "
                "a length penalty may stop it",
                drift.well,
            )
    return None
