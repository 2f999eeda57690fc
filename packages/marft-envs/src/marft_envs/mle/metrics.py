"""Competition metrics: one number from correct answers and predictions, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]
LEAST = 1e-15  # probabilities are clipped to [LEAST, 1 − LEAST]


class Metric(NamedTuple):
    """A metric and the range of valid predictions.

    Args:
        lower_is_better: True if lower scores are better.
        of_numbers: function of correct values [N] and predicted values [N]; None to compare labels as texts.
        least: smallest valid prediction.
        most: largest valid prediction.
    """

    lower_is_better: bool
    of_numbers: Callable[[Column, Column], float] | None = None
    least: float = -np.inf
    most: float = np.inf


def rmse(right: Column, given: Column) -> float:
    """Return the root mean squared error, ``√(Σ (y − ŷ)² / N)``."""
    return float(np.sqrt(np.mean((right - given) ** 2)))


def mae(right: Column, given: Column) -> float:
    """Return the mean absolute error, ``Σ |y − ŷ| / N``."""
    return float(np.mean(np.abs(right - given)))


def rmsle(right: Column, given: Column) -> float:
    """Return the root mean squared logarithmic error, ``√(Σ (ln(1 + y) − ln(1 + ŷ))² / N)``."""
    return rmse(np.log1p(right), np.log1p(given))


def auc(right: Column, given: Column) -> float:
    """Return the area under the ROC curve (Mann and Whitney 1947).

    It is the probability that a row of class 1 gets a larger prediction than a row of class 0; a tie counts one
    half. With only one class the result is one half.
    """
    positive, negative = given[right == 1], given[right != 1]
    if not len(positive) or not len(negative):
        return 0.5
    ordered = np.sort(negative)
    below, up_to = np.searchsorted(ordered, positive, "left"), np.searchsorted(ordered, positive, "right")
    return float((below + up_to).sum() / 2 / len(positive) / len(negative))


def log_loss(right: Column, given: Column) -> float:
    """Return the binary cross-entropy, ``−Σ (y ln p + (1 − y) ln(1 − p)) / N``."""
    p = np.clip(given, LEAST, 1 - LEAST)
    return float(-np.mean(right * np.log(p) + (1 - right) * np.log1p(-p)))


def accuracy(right: Sequence[str], given: Sequence[str]) -> float:
    """Return the fraction of correct labels."""
    return sum(map(same_label, right, given)) / len(right)


def same_label(right: str, given: str) -> bool:
    """Return True if a label equals the correct one.

    Two numbers, or two truth values, are compared by value, because reading a table may change their form. Other
    labels are compared exactly.

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
CALLED = {  # names in MLE-bench's configurations, and common aliases
    "auc-roc": "auc", "roc-auc": "auc", "area-under-roc": "auc", "classification-accuracy": "accuracy",
    "multi-class-classification-accuracy": "accuracy",
    "binary-log-loss": "log_loss", "log-loss": "log_loss", "mean-absolute-error": "mae",
    "root-mean-squared-error": "rmse", "root-mean-squared-log-error": "rmsle",
}  # fmt: skip
