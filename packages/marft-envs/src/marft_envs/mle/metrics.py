"""Competition metrics: one number from correct answers and predictions, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]
MIN_PROBABILITY = 1e-15  # probabilities are clipped to [LEAST, 1 − LEAST]


class Metric(NamedTuple):
    """A metric and the range of valid predictions.

    Args:
        lower_is_better: True if lower scores are better.
        score_fn: function of correct values [N] and predicted values [N]; None to compare labels as texts.
        minimum: smallest valid prediction.
        maximum: largest valid prediction.
    """

    lower_is_better: bool
    score_fn: Callable[[Column, Column], float] | None = None
    minimum: float = -np.inf
    maximum: float = np.inf


def compute_rmse(expected: Column, predicted: Column) -> float:
    """Return the root mean squared error, ``√(Σ (y − ŷ)² / N)``."""
    return float(np.sqrt(np.mean((expected - predicted) ** 2)))


def compute_mae(expected: Column, predicted: Column) -> float:
    """Return the mean absolute error, ``Σ |y − ŷ| / N``."""
    return float(np.mean(np.abs(expected - predicted)))


def compute_rmsle(expected: Column, predicted: Column) -> float:
    """Return the root mean squared logarithmic error, ``√(Σ (ln(1 + y) − ln(1 + ŷ))² / N)``."""
    return compute_rmse(np.log1p(expected), np.log1p(predicted))


def compute_auc(expected: Column, predicted: Column) -> float:
    """Return the area under the ROC curve (Mann and Whitney 1947).

    It is the probability that a row of class 1 gets a larger prediction than a row of class 0; a tie counts one
    half. With only one class the result is one half.
    """
    positive, negative = predicted[expected == 1], predicted[expected != 1]
    if not len(positive) or not len(negative):
        return 0.5
    ordered = np.sort(negative)
    below, up_to = np.searchsorted(ordered, positive, "left"), np.searchsorted(ordered, positive, "right")
    return float((below + up_to).sum() / 2 / len(positive) / len(negative))


def compute_log_loss(expected: Column, predicted: Column) -> float:
    """Return the binary cross-entropy, ``−Σ (y ln p + (1 − y) ln(1 − p)) / N``."""
    p = np.clip(predicted, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return float(-np.mean(expected * np.log(p) + (1 - expected) * np.log1p(-p)))


def compute_accuracy(expected: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the fraction of correct labels."""
    return sum(map(labels_match, expected, predicted)) / len(expected)


def labels_match(expected: str, predicted: str) -> bool:
    """Return True if a label equals the correct one.

    Two numbers, or two truth values, are compared by value, because reading a table may change their form. Other
    labels are compared exactly.

    >>> labels_match("1", "1.0"), labels_match("True", "true"), labels_match("cat", "Cat")
    (True, True, False)
    """
    if expected == predicted:
        return True
    if {expected.lower(), predicted.lower()} <= {"true", "false"}:
        return expected.lower() == predicted.lower()
    try:
        return float(expected) == float(predicted)
    except ValueError:
        return False


METRICS: dict[str, Metric] = {
    "accuracy": Metric(lower_is_better=False),
    "auc": Metric(lower_is_better=False, score_fn=compute_auc, minimum=0.0, maximum=1.0),
    "log_loss": Metric(lower_is_better=True, score_fn=compute_log_loss, minimum=0.0, maximum=1.0),
    "mae": Metric(lower_is_better=True, score_fn=compute_mae),
    "rmse": Metric(lower_is_better=True, score_fn=compute_rmse),
    "rmsle": Metric(lower_is_better=True, score_fn=compute_rmsle, minimum=0.0),
}
METRIC_ALIASES = {  # names in MLE-bench's configurations, and common aliases
    "auc-roc": "auc",
    "roc-auc": "auc",
    "area-under-roc": "auc",
    "classification-accuracy": "accuracy",
    "multi-class-classification-accuracy": "accuracy",
    "binary-log-loss": "log_loss",
    "log-loss": "log_loss",
    "mean-absolute-error": "mae",
    "root-mean-squared-error": "rmse",
    "root-mean-squared-log-error": "rmsle",
}
