"""Guard against a fall in accuracy or reward."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.gains import gain, measured
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """Report a fall from the best window to the newest window.

    Condition: the newest window is below the best earlier window by more than the threshold, in standard deviations
    between episodes (``gains.gain``). 0.8 is a large effect (Cohen 1988), such as a fall from 90 % to 55 %.
    """
    window = settings.window
    known = measured(history, 2 * window)
    if known is None:
        return None
    name, series, deviations = known
    means = series.means(window)
    best = int(np.argmax(means[: len(series) - 2 * window + 1]))
    if -gain(series, deviations, best, window) <= settings.reward_fall:
        return None
    return Finding(
        f"{name} fell from {means[best]:.2f} to {means[-1]:.2f}, over {window} steps each: what was learned is being "
        "lost; lower algorithm.optimizer.learning_rate, or go on from the best checkpoint (--from)",
        series.steps[best + window - 1],
    )
