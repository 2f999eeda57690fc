"""Guard against a fall in accuracy or reward."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.effect_size import compute_effect_size, performance_series
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a fall from the best window to the newest window.

    Condition: the newest window is below the best earlier window by more than the threshold, in standard deviations
    between episodes (``gains.gain``). 0.8 is a large effect (Cohen 1988), such as a fall from 90 % to 55 %.
    """
    window = settings.window
    performance = performance_series(history, 2 * window)
    if performance is None:
        return None
    name, series, deviations = performance
    means = series.means(window)
    best = int(np.argmax(means[: len(series) - 2 * window + 1]))
    if -compute_effect_size(series, deviations, best, window) <= settings.reward_drop:
        return None
    return GuardAlert(
        f"{name} fell from {means[best]:.2f} to {means[-1]:.2f}, over {window} steps each: what was learned is being "
        "lost; lower algorithm.optimizer.learning_rate, or go on from the best checkpoint (--init-from)",
        series.steps[best + window - 1],
    )
