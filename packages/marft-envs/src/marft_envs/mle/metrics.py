"""What competitions are graded by: a number from predictions and right answers, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]
LEAST = 1e-15  # a probability is at least this, and at most 1 less this


class Metric(NamedTuple):
    """
    Args:
        of_numbers: from right values [N] and predicted ones [N]; None where labels are compared as they are written.
        least: the smallest prediction that can be meant.
        most: the largest one.
    """

    lower_is_better: bool
    of_numbers: Callable[[Column, Column], float] | None = None
    least: float = -np.inf
    most: float = np.inf


def rmse(right: Column, given: Column) -> float:
    """``√(Σ (y − ŷ)² / N)``"""
    return float(np.sqrt(np.mean((right - given) ** 2)))


def mae(right: Column, given: Column) -> float:
    """``Σ |y − ŷ| / N``"""
    return float(np.mean(np.abs(right - given)))


def rmsle(right: Column, given: Column) -> float:
    """``√(Σ (ln(1 + y) − ln(1 + ŷ))² / N)``"""
    return rmse(np.log1p(right), np.log1p(given))


def auc(right: Column, given: Column) -> float:
    """How often a row of class 1 is given more than one of class 0, a tie counting one half (Mann and Whitney 1947);
    one half where only one class is there."""
    positive, negative = given[right == 1], given[right != 1]
    if not len(positive) or not len(negative):
        return 0.5
    ordered = np.sort(negative)
    below, up_to = np.searchsorted(ordered, positive, "left"), np.searchsorted(ordered, positive, "right")
    return float((below + up_to).sum() / 2 / len(positive) / len(negative))


def log_loss(right: Column, given: Column) -> float:
    """``−Σ (y ln p + (1 − y) ln(1 − p)) / N`` of two classes"""
    p = np.clip(given, LEAST, 1 - LEAST)
    return float(-np.mean(right * np.log(p) + (1 - right) * np.log1p(-p)))


def accuracy(right: Sequence[str], given: Sequence[str]) -> float:
    """The share of labels that are right."""
    return sum(map(same_label, right, given)) / len(right)


def same_label(right: str, given: str) -> bool:
    """Whether a label is the right one: as a number or as a truth value where both are, as a table that is read in
    makes of them; else to the letter.

    >>> same_label("1", "1.0"), same_label("True", "true"), same_label("cat", "Cat")
    (True, True, False)
    """
    if right == given:
        return True
    if {right.lower(), given.lower()} <= {"true", "false"}:
        return right.lower() == given.lower()
    try:
        return float(right) == float(given)
    except ValueError:
        return False


METRICS: dict[str, Metric] = {
    "accuracy": Metric(lower_is_better=False),
    "auc": Metric(lower_is_better=False, of_numbers=auc, least=0.0, most=1.0),
    "log_loss": Metric(lower_is_better=True, of_numbers=log_loss, least=0.0, most=1.0),
    "mae": Metric(lower_is_better=True, of_numbers=mae),
    "rmse": Metric(lower_is_better=True, of_numbers=rmse),
    "rmsle": Metric(lower_is_better=True, of_numbers=rmsle, least=0.0),
}
CALLED = {  # what MLE-bench's configurations call them, and others
    "auc-roc": "auc", "roc-auc": "auc", "area-under-roc": "auc", "classification-accuracy": "accuracy",
    "multi-class-classification-accuracy": "accuracy",
    "binary-log-loss": "log_loss", "log-loss": "log_loss", "mean-absolute-error": "mae",
    "root-mean-squared-error": "rmse", "root-mean-squared-log-error": "rmsle",
}  # fmt: skip
