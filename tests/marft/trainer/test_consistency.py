"""How consistently two rewards rank a group: each measure against its slow reference, and what each must be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.trainer.credit.consistency import CONSISTENCY_FUNCTIONS, Consistency, dense_ranks, kendall, ndcg, spearman
from tests import references_credit as slow

NOISE = 1e-12  # of adding up in another order
REWARDS = st.builds(lambda value, n: value + n * NOISE, st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.integers(0, 3))
GROUPS = st.lists(st.tuples(REWARDS, REWARDS), min_size=1, max_size=6)
NAMES: Sequence[Consistency] = ("spearman", "kendall", "ndcg")


def measured(name: Consistency, a: Sequence[float], b: Sequence[float]) -> float:
    return CONSISTENCY_FUNCTIONS[name](np.array(a, np.float64), np.array(b, np.float64))


@pytest.mark.parametrize("name", NAMES)
@given(pairs=GROUPS)
def test_a_measure_equals_its_slow_reference(name: Consistency, pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    assert measured(name, a, b) == pytest.approx(slow.CONSISTENCIES[name](a, b), abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(pairs=GROUPS, order=st.randoms(use_true_random=False))
def test_a_measure_is_within_its_bounds_and_does_not_depend_on_the_order_of_attempts(
    name: Consistency, pairs: list[tuple[float, float]], order: object
) -> None:
    found = measured(name, *zip(*pairs, strict=True))
    assert -1 - 1e-9 <= found <= 1 + 1e-9
    order.shuffle(pairs)  # type: ignore[attr-defined]
    assert measured(name, *zip(*pairs, strict=True)) == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(values=st.lists(REWARDS, min_size=1, max_size=6), scale=st.sampled_from([0.5, 1.0, 3.0]), other=REWARDS)
def test_alike_is_1_whatever_the_scale_and_where_either_is_constant_it_is_0(
    name: Consistency, values: list[float], scale: float, other: float
) -> None:
    alike = measured(name, values, [scale * value + other for value in values])
    assert alike == pytest.approx(float(max(values) - min(values) > 0.1))
    assert measured(name, values, [other] * len(values)) == 0.0 == measured(name, [other] * len(values), values)


@pytest.mark.parametrize("name", NAMES)
def test_one_attempt_ranks_nothing(name: Consistency) -> None:
    assert measured(name, [1.0], [0.5]) == 0.0


def test_of_two_attempts_in_reverse_order_correlations_are_minus_1_and_ndcg_is_the_second_places_discount() -> None:
    a, b = np.array([0.0, 1.0]), np.array([5.0, 2.0])
    assert (spearman(a, b), kendall(a, b)) == pytest.approx((-1.0, -1.0))
    assert ndcg(a, b) == pytest.approx(1 / math.log2(3))


def test_ndcg_minds_the_best_places_most_and_how_much_they_gain() -> None:
    """What the local reward gets wrong at the top costs more than at the bottom; ranks cost the same."""
    whole = np.array([3.0, 2.0, 1.0, 0.0])
    top, bottom = np.array([2.0, 3.0, 1.0, 0.0]), np.array([3.0, 2.0, 0.0, 1.0])
    assert ndcg(top, whole) < ndcg(bottom, whole) < 1
    assert spearman(top, whole) == pytest.approx(spearman(bottom, whole))
    assert kendall(top, whole) == pytest.approx(kendall(bottom, whole)) == pytest.approx(4 / 6)


def test_ties_of_one_reward_alone_take_away_from_rank_correlations() -> None:
    local, whole = np.array([1.0, 1.0, 0.0]), np.array([2.0, 1.0, 0.0])
    assert kendall(local, whole) == pytest.approx(2 / math.sqrt(2 * 3))
    assert spearman(local, whole) == pytest.approx(math.sqrt(3) / 2)
    assert ndcg(local, whole) == pytest.approx(3 * (1 + 1 / math.log2(3)) / 2 / (2 + 1 / math.log2(3)))


def test_sums_that_differ_by_rounding_alone_are_tied() -> None:
    assert dense_ranks(np.array([0.1 + 0.2, 0.3, -1.0])).tolist() == [1, 1, 0]
    assert dense_ranks(np.array([])).tolist() == []
