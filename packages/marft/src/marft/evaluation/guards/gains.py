"""Effect sizes: differences between windows in standard deviations between episodes, independent of reward scale."""

from __future__ import annotations

import math

import numpy as np

from marft.evaluation.guards.history import Floats, History, Series

SURE = 5.0  # standard errors; the best of many windows is also high by chance
SOLVED = 0.95  # accuracy with little room for improvement


def measured(history: History, least: int) -> tuple[str, Series, Floats] | None:
    """Return name, series and deviations for accuracy, or for reward if success is unknown.

    The deviations are the standard deviations between episodes at each step. The result is None if fewer than ``least``
    values exist.
    """
    accuracy = history.now("accuracy", least)
    if accuracy is not None:
        return "accuracy", accuracy, np.sqrt(accuracy.values * (1.0 - accuracy.values))
    reward, deviations = history.now("reward", least), history.series("reward_std").values
    return ("reward", reward, deviations) if reward is not None and len(deviations) == len(reward) else None


def gain(series: Series, deviations: Floats, before: int, window: int, sure: float = SURE) -> float:
    """Return the effect size between the newest window and the window at index ``before``.

    It is (m₂ − m₁) / s, with s² = mean of the steps' variances + (m₂ − m₁)²/4, the variance of the episodes of both
    windows together.

    It is 0 if the difference is at most ``sure`` standard errors, scatter · √(2/window).
    """
    old, new = slice(before, before + window), slice(len(series) - window, len(series))
    difference = float(series.values[new].mean() - series.values[old].mean())
    if abs(difference) <= sure * series.scatter() * math.sqrt(2.0 / window):
        return 0.0
    within = float(np.mean(np.concatenate([deviations[old], deviations[new]]) ** 2))
    return difference / math.sqrt(within + difference**2 / 4)


def earns_more(history: History, window: int, sure: float = 1.0) -> bool:
    """Return True if the team does better than in the first window, or solves over 95 % and has little to gain.

    If success is unknown, reward replaces accuracy. Real gains and reward hacking are then indistinguishable.

    Args:
        sure: required difference in standard errors.
    """
    known = measured(history, 2 * window)
    if known is None:
        return False
    name, series, deviations = known
    return gain(series, deviations, 0, window, sure) > 0 or (
        name == "accuracy" and float(series.values[-window:].mean()) > SOLVED
    )


def solves_more(history: History, window: int) -> bool | None:
    """Return True if accuracy exceeds that of the first window by a standard error, or is above 95 %.

    The result is None if success is unknown, or known for less than two windows.
    """
    return None if history.now("accuracy", 2 * window) is None else earns_more(history, window)
