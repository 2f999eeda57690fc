"""Guard against a switch to another script and language."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import find_drifts
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent that writes in scripts absent from its task.

    Condition: share of letters in other scripts over the newest window − share over the first window > threshold,
    significantly, for any agent.
    """
    for drift in find_drifts(history, "other_script", settings.window):
        if drift.is_significant and drift.increase > settings.language:
            return GuardAlert(
                f"{drift.owner}: {drift.last:.0%} of its letters are of a script that its task does not use, and "
                f"{drift.first:.0%} were at first: it changes its language; say in its instructions which one, or add "
                "a reward term that asks for it",
                drift.last_good_step,
            )
    return None
