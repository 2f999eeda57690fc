"""Differences between windows of steps, in deviations between episodes: the same for rewards of any size."""

from __future__ import annotations

import math

import numpy as np

from marft.evaluation.guards.history import Floats, History, Series

SURE = 5.0  # standard errors: the best of many windows is good by chance too
SOLVED = 0.95  # accuracy that has little to gain


def measured(history: History, least: int) -> tuple[str, Series, Floats] | None:
    """Accuracy, or reward where success is not known → its name, and the deviation between episodes of each step."""
    accuracy = history.now("accuracy", least)
    if accuracy is not None:
        return "accuracy", accuracy, np.sqrt(accuracy.values * (1.0 - accuracy.values))
    reward, deviations = history.now("reward", least), history.series("reward_std").values
    return ("reward", reward, deviations) if reward is not None and len(deviations) == len(reward) else None


def gain(series: Series, deviations: Floats, before: int, window: int, sure: float = SURE) -> float:
    """How much higher the newest window is than the one that begins at index ``before``: (m₂ − m₁) / s, with
    s² = mean of the steps' variances + (m₂ − m₁)²/4, the variance of the episodes of both windows together.

    0 where the difference is less than ``sure`` standard errors of two windows' means, each scatter/√window.
    """
    old, new = slice(before, before + window), slice(len(series) - window, len(series))
    difference = float(series.values[new].mean() - series.values[old].mean())
    if abs(difference) <= sure * series.scatter() * math.sqrt(2.0 / window):
        return 0.0
    within = float(np.mean(np.concatenate([deviations[old], deviations[new]]) ** 2))
    return difference / math.sqrt(within + difference**2 / 4)


def earns_more(history: History, window: int, sure: float = 1.0) -> bool:
    """As :func:`solves_more`; where success is not known, whether reward is above that of the first window: then nobody
    can tell what is earned from what is gamed.

    Args:
        sure: standard errors.
    """
    known = measured(history, 2 * window)
    if known is None:
        return False
    name, series, deviations = known
    return gain(series, deviations, 0, window, sure) > 0 or (
        name == "accuracy" and float(series.values[-window:].mean()) > SOLVED
    )


def solves_more(history: History, window: int) -> bool | None:
    """Whether accuracy is above that of the first window by a standard error, or 95 % and has little to gain; None
    where success is not known, or not for long enough."""
    return None if history.now("accuracy", 2 * window) is None else earns_more(history, window)
