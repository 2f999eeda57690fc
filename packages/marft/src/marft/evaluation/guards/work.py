"""Guard against work that moves to an agent without a reward term."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import find_drifts
from marft.evaluation.guards.effect_size import has_better_accuracy
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent without a reward term that writes more of the team's tokens than at first.

    Condition: share of the team's own tokens over the newest window − share over the first window > threshold,
    significantly, for an agent without a reward term. In addition, another agent must have a reward term, and accuracy
    must be known and must not exceed that of the first window.
    """
    rewarded_agents = history.rewarded_agents()
    if not rewarded_agents or has_better_accuracy(history, settings.window) is not False:
        return None
    for drift in find_drifts(history, "token_share", settings.window):
        if drift.owner not in rewarded_agents and drift.is_significant and drift.increase > settings.work:
            return GuardAlert(
                f"{drift.owner}: {drift.last:.0%} of what the team writes is its own, and {drift.first:.0%} was at "
                "first, and no more is solved: work moves to where no term looks; let the terms of "
                f"{', '.join(sorted(rewarded_agents))} look at {drift.owner} too, or at the team",
                drift.last_good_step,
            )
    return None
