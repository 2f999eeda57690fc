"""What is asked in the night alone (``make nightly``), and of what the day asks a part."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

import pytest

T = TypeVar("T")
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "")
NIGHT = PROFILE in ("nightly", "mutants")  # whose planted faults any test may find
BY_NIGHT = pytest.mark.skipif(not NIGHT, reason="what others ask more cheaply by day: make nightly")
MANY = {"nightly": 1000, "mutants": 200}.get(PROFILE, 30)  # examples of a property with many cases apart


def by_day(few: int, many: int) -> int:
    """How many are asked: few by day, many in the night."""
    return many if NIGHT else few


def some(cases: Iterable[T], of: int = 3) -> list[T]:
    """All cases in the night, else the first and every ``of``-th after it: of sweeps whose cases hold much alike.

    >>> [len(some(range(10))) in (4, 10), len(some([])) == 0]
    [True, True]
    """
    return list(islice(cases, 0, None, 1 if NIGHT else of))
