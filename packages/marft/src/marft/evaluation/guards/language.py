"""Guard against a switch to another script and language."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import drifts
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """Report an agent that writes in scripts absent from its task.

    Condition: share of letters in other scripts over the newest window − share over the first window > threshold,
    significantly, for any agent.
    """
    for drift in drifts(history, "other_script", settings.window):
        if drift.sure and drift.rise > settings.language:
            return Finding(
                f"{drift.owner}: {drift.now:.0%} of its letters are of a script that its task does not use, and "
                f"{drift.first:.0%} were at first: it changes its language; say in its instructions which one, or add "
                "a reward term that asks for it",
                drift.well,
            )
    return None
