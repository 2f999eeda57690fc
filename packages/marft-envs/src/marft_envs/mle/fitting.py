"""How well a planted structure can be learned from a table: what leaderboards of drawn competitions are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Rows = Sequence[Sequence[str]]
Columns = npt.NDArray[np.float64]


def predicted(kind: str, train: Rows, test: Rows) -> list[str]:
    """Predictions for rows of the test, whose last cell is not looked at, from rows with it."""
    return {"linear": _linear, "groups": _groups, "bound": _bound}[kind](train, test)


def _linear(train: Rows, test: Rows) -> list[str]:
    """Least squares with a constant."""
    known, asked = (np.array([[1.0, *map(float, row[1:-1])] for row in rows]) for rows in (train, test))
    return _solved(known, asked, train)


def _groups(train: Rows, test: Rows) -> list[str]:
    """Least squares on which groups a row is in, of least norm: only sums of two effects can be told."""
    groups = sorted({(place, row[place]) for row in train for place in (1, 2)})
    known, asked = (np.array([[float(row[p] == g) for p, g in groups] for row in rows]) for rows in (train, test))
    return _solved(known, asked, train)


def _solved(known: Columns, asked: Columns, train: Rows) -> list[str]:
    values = np.array([float(row[-1]) for row in train])
    weights, *_ = np.linalg.lstsq(known, values, rcond=None)
    return [f"{value:.6f}" for value in asked @ weights]


def _bound(train: Rows, test: Rows) -> list[str]:
    """The column, bound and side that are right most often in training."""
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
