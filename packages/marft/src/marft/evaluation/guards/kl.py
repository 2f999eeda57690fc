"""Every step moves an agent far from the policy that it began with."""

from __future__ import annotations

import math

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """min of the window's KL > threshold, of any agent.

    Sound steps stay below 0.01 nats a token, and clips and importance weights mean little at ten times that.
    """
    for role in history.owners("agents", "kl"):
        series = history.now(f"agents/{role}/kl", settings.window)
        if series is None:
            continue
        least = float(series.values[-settings.window :].min())
        if least > settings.kl:
            return Finding(
                f"{role}: each of the last {settings.window} steps moved it by {least:.2g} nats a token or more: it is "
                "learning from samples of policies that it no longer is; lower algorithm.optimizer.learning_rate",
                series.steps[-settings.window] - 1,
            )
    return None


def cooled(history: History, settings: GuardSettings) -> float:
    """What rates are to be multiplied by after a collapse: rate · min(1, √(threshold / KL)), for the median KL of the
    window of the agent that moved most.

    The KL of a small step goes with the square of its rate: from the threshold on each collapse is cooled to where a
    step moves an agent by rate² · threshold, a thousandth of a nat. Where KL was not measured it is ``rate``.
    """
    found = [history.series(f"agents/{role}/kl").values for role in history.owners("agents", "kl")]
    most = max((float(np.median(values[-settings.window :])) for values in found if len(values)), default=0.0)
    return settings.rate * math.sqrt(settings.kl / most) if most > settings.kl > 0 else settings.rate
