"""Least-squares and threshold fits of planted structures, the basis for generated leaderboards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Rows = Sequence[Sequence[str]]
Columns = npt.NDArray[np.float64]


def predict(kind: str, train: Rows, test: Rows) -> list[str]:
    """Fit the training rows and return predictions for the test rows.

    The last cell of a row is its answer; it is ignored in test rows.
    """
    return {"linear": _fit_linear, "groups": _fit_groups, "bound": _fit_bound}[kind](train, test)


def _fit_linear(train: Rows, test: Rows) -> list[str]:
    """Fit a linear model with intercept by least squares."""
    train_inputs, test_inputs = (np.array([[1.0, *map(float, row[1:-1])] for row in rows]) for rows in (train, test))
    return _fit_and_predict(train_inputs, test_inputs, train)


def _fit_groups(train: Rows, test: Rows) -> list[str]:
    """Fit group effects by least squares with minimum norm.

    Only sums of two effects are identifiable.
    """
    groups = sorted({(place, row[place]) for row in train for place in (1, 2)})
    train_inputs, test_inputs = (
        np.array([[float(row[p] == g) for p, g in groups] for row in rows]) for rows in (train, test)
    )
    return _fit_and_predict(train_inputs, test_inputs, train)


def _fit_and_predict(train_inputs: Columns, test_inputs: Columns, train: Rows) -> list[str]:
    values = np.array([float(row[-1]) for row in train])
    weights, *_ = np.linalg.lstsq(train_inputs, values, rcond=None)
    return [f"{value:.6f}" for value in test_inputs @ weights]


def _fit_bound(train: Rows, test: Rows) -> list[str]:
    """Choose the column, bound and side with the most correct training labels."""
    best = max(
        _candidate_bounds(train), key=lambda candidate: sum(_predict_label(row, *candidate) == row[-1] for row in train)
    )
    return [_predict_label(row, *best) for row in test]


def _candidate_bounds(train: Rows) -> Iterable[tuple[int, float, str]]:
    for place in range(1, len(train[0]) - 1):
        values = sorted(float(row[place]) for row in train)
        for low, high in pairwise(values):
            yield from ((place, (low + high) / 2, above) for above in ("yes", "no"))


def _predict_label(row: Sequence[str], place: int, bound: float, above: str) -> str:
    below = "no" if above == "yes" else "yes"
    return above if float(row[place]) > bound else below
