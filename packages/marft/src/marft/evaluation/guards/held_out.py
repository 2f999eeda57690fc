"""Guard against overfitting: training reward rises while validation results fall."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.effect_size import compute_effect_size
from marft.evaluation.guards.history import History, Series
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a fall in validation results during a rise in training reward.

    Condition: the two newest validations are both below the best one by more than threshold · standard deviation
    between episodes. In addition, the training reward must exceed that at the best validation (``gains.gain`` > 0).

    Half a standard deviation is a fall from 90 % to 73 %. For a hundred tasks, that is 3.5 standard errors, twice.
    """
    window = settings.window
    name = next((it for it in ("validation_accuracy", "validation_reward") if len(history.series(it)) > 2), "")
    reward, deviations = history.current_series("reward", 2 * window), history.series("reward_std").values
    if not name or reward is None or len(deviations) != len(reward):
        return None
    validation = history.series(name)
    best = int(np.argmax(validation.values[:-2]))
    highest, newest = float(validation.values[best]), float(validation.values[-2:].max())
    before = max(0, bisect_right(reward.steps, validation.steps[best]) - window)
    if before > len(reward) - 2 * window or compute_effect_size(reward, deviations, before, window) <= 0:
        return None
    if highest - newest <= settings.validation_drop * _deviation(name, validation, deviations, before, window):
        return None
    return GuardAlert(
        f"{name} fell from {highest:.2f} to {newest:.2f} or less while the reward in training rose: what is learned "
        "does not hold on other tasks, or is no solution; look at what earns (`marft show RUN`), train on more tasks, "
        "or stop at the best checkpoint",
        validation.steps[best],
    )


def _deviation(name: str, validation: Series, deviations: np.ndarray, before: int, window: int) -> float:
    """Return the standard deviation between episodes.

    For accuracy it follows from the validation values. For reward it is that of the training reward at the best
    validation.
    """
    if name == "validation_accuracy":
        values = validation.values
        return float(np.sqrt(np.mean([p * (1 - p) for p in (values[:-2].max(), values[-2:].max())])))
    return float(np.sqrt(np.mean(deviations[before : before + window] ** 2)))
