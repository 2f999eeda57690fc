"""Effect sizes: differences between windows in standard deviations between episodes, independent of reward scale."""

from __future__ import annotations

import math

import numpy as np

from marft.evaluation.guards.history import Floats, History, Series

MIN_STANDARD_ERRORS = 5.0  # standard errors; the best of many windows is also high by chance
SOLVED_ACCURACY = 0.95  # accuracy with little room for improvement


def performance_series(history: History, min_values: int) -> tuple[str, Series, Floats] | None:
    """Return name, series and deviations for accuracy, or for reward if success is unknown.

    The deviations are the standard deviations between episodes at each step. The result is None if fewer than
    ``min_values`` values exist.
    """
    accuracy = history.current_series("accuracy", min_values)
    if accuracy is not None:
        return "accuracy", accuracy, np.sqrt(accuracy.values * (1.0 - accuracy.values))
    reward, deviations = history.current_series("reward", min_values), history.series("reward_std").values
    return ("reward", reward, deviations) if reward is not None and len(deviations) == len(reward) else None


def compute_effect_size(
    series: Series, deviations: Floats, before: int, window: int, min_errors: float = MIN_STANDARD_ERRORS
) -> float:
    """Return the effect size between the newest window and the window at index ``before``.

    It is (m₂ − m₁) / s, with s² = mean of the steps' variances + (m₂ − m₁)²/4, the variance of the episodes of both
    windows together.

    It is 0 if the difference is at most ``min_errors`` standard errors, scatter · √(2/window).
    """
    old, new = slice(before, before + window), slice(len(series) - window, len(series))
    difference = float(series.values[new].mean() - series.values[old].mean())
    if abs(difference) <= min_errors * series.estimate_noise() * math.sqrt(2.0 / window):
        return 0.0
    within = float(np.mean(np.concatenate([deviations[old], deviations[new]]) ** 2))
    return difference / math.sqrt(within + difference**2 / 4)


def has_improved(history: History, window: int, min_errors: float = 1.0) -> bool:
    """Return True if the team does better than in the first window, or solves over 95 % and has little to gain.

    If success is unknown, reward replaces accuracy. Real gains and reward hacking are then indistinguishable.

    Args:
        min_errors: required difference in standard errors.
    """
    performance = performance_series(history, 2 * window)
    if performance is None:
        return False
    name, series, deviations = performance
    return compute_effect_size(series, deviations, 0, window, min_errors) > 0 or (
        name == "accuracy" and float(series.values[-window:].mean()) > SOLVED_ACCURACY
    )


def has_better_accuracy(history: History, window: int) -> bool | None:
    """Return True if accuracy exceeds that of the first window by a standard error, or is above 95 %.

    The result is None if success is unknown, or known for less than two windows.
    """
    return None if history.current_series("accuracy", 2 * window) is None else has_improved(history, window)
