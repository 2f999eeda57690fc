"""Least-squares and threshold fits of planted structures, the basis for generated leaderboards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Rows = Sequence[Sequence[str]]
Columns = npt.NDArray[np.float64]


def predicted(kind: str, train: Rows, test: Rows) -> list[str]:
    """Fit the training rows and return predictions for the test rows.

    The last cell of a row is its answer; it is ignored in test rows.
    """
    return {"linear": _linear, "groups": _groups, "bound": _bound}[kind](train, test)


def _linear(train: Rows, test: Rows) -> list[str]:
    """Fit a linear model with intercept by least squares."""
    known, asked = (np.array([[1.0, *map(float, row[1:-1])] for row in rows]) for rows in (train, test))
    return _solved(known, asked, train)


def _groups(train: Rows, test: Rows) -> list[str]:
    """Fit group effects by least squares with minimum norm.

    Only sums of two effects are identifiable.
    """
    groups = sorted({(place, row[place]) for row in train for place in (1, 2)})
    known, asked = (np.array([[float(row[p] == g) for p, g in groups] for row in rows]) for rows in (train, test))
    return _solved(known, asked, train)


def _solved(known: Columns, asked: Columns, train: Rows) -> list[str]:
    values = np.array([float(row[-1]) for row in train])
    weights, *_ = np.linalg.lstsq(known, values, rcond=None)
    return [f"{value:.6f}" for value in asked @ weights]


def _bound(train: Rows, test: Rows) -> list[str]:
    """Choose the column, bound and side with the most correct training labels."""
    best = max(_bounds(train), key=lambda one: sum(_label(row, *one) == row[-1] for row in train))
    return [_label(row, *best) for row in test]


def _bounds(train: Rows) -> Iterable[tuple[int, float, str]]:
    for place in range(1, len(train[0]) - 1):
        values = sorted(float(row[place]) for row in train)
        for low, high in pairwise(values):
            yield from ((place, (low + high) / 2, above) for above in ("yes", "no"))


def _label(row: Sequence[str], place: int, bound: float, above: str) -> str:
    below = "no" if above == "yes" else "yes"
    return above if float(row[place]) > bound else below
