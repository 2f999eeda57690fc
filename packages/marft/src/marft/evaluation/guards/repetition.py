"""Guard against repetitive text without better results."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import find_drifts
from marft.evaluation.guards.effect_size import has_improved
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent that repeats itself more than at first.

    Condition: share of repeated 4-grams over the newest window − share over the first window > threshold,
    significantly, for any agent. In addition, accuracy (or else reward) must not exceed that of the first window.
    """
    if has_improved(history, settings.window):
        return None
    for drift in find_drifts(history, "repetition", settings.window):
        if drift.is_significant and drift.increase > settings.repetition:
            return GuardAlert(
                f"{drift.owner}: it repeats {drift.last:.0%} of its 4-grams, and {drift.first:.0%} at first, and no "
                "more is solved for it: look at what it writes (`marft show RUN`), and at which term pays for it; "
                "a length penalty may stop it",
                drift.last_good_step,
            )
    return None
