"""Guard against steps that move a policy too far."""

from __future__ import annotations

import math

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with a KL divergence above the threshold in every step of the window.

    Condition: min KL of the window > threshold, for any agent.

    Stable training stays below 0.01 nats per token. At ten times that value, clipping and importance weights have
    little effect.
    """
    for role in history.owners("agents", "kl"):
        series = history.current_series(f"agents/{role}/kl", settings.window)
        if series is None:
            continue
        least = float(series.values[-settings.window :].min())
        if least > settings.kl:
            return GuardAlert(
                f"{role}: each of the last {settings.window} steps moved it by {least:.2g} nats a token or more: it is "
                "learning from samples of policies that it no longer is; lower algorithm.optimizer.learning_rate",
                series.steps[-settings.window] - 1,
            )
    return None


def learning_rate_factor(history: History, settings: GuardSettings) -> float:
    """Return the factor for all learning rates after a rollback.

    The factor is rollback_lr_factor · min(1, √(threshold / KL)), with the median KL over the window of the agent with
    the highest median. It is ``rollback_lr_factor`` if KL was not measured.

    The KL of a small step is proportional to the square of the learning rate. From the threshold on, the factor
    therefore brings a step down to a KL of rollback_lr_factor² · threshold, a thousandth of a nat.
    """
    kl_values = [history.series(f"agents/{role}/kl").values for role in history.owners("agents", "kl")]
    max_kl = max((float(np.median(values[-settings.window :])) for values in kl_values if len(values)), default=0.0)
    return (
        settings.rollback_lr_factor * math.sqrt(settings.kl / max_kl)
        if max_kl > settings.kl > 0
        else settings.rollback_lr_factor
    )
