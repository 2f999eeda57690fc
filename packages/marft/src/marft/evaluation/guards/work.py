"""Guard against work that moves to an agent without a reward term."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import drifts
from marft.evaluation.guards.gains import solves_more
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """Report an agent without a reward term that writes more of the team's tokens than at first.

    Condition: share of the team's own tokens over the newest window − share over the first window > threshold,
    significantly, for an agent without a reward term. In addition, another agent must have a reward term, and accuracy
    must be known and must not exceed that of the first window.
    """
    watched = history.watched()
    if not watched or solves_more(history, settings.window) is not False:
        return None
    for drift in drifts(history, "token_share", settings.window):
        if drift.owner not in watched and drift.sure and drift.rise > settings.work:
            return Finding(
                f"{drift.owner}: {drift.now:.0%} of what the team writes is its own, and {drift.first:.0%} was at "
                "first, and no more is solved: work moves to where no term looks; let the terms of "
                f"{', '.join(sorted(watched))} look at {drift.owner} too, or at the team",
                drift.well,
            )
    return None
