"""Intervals of differences on the same tasks cover the truth as often as they say."""

from __future__ import annotations

import os
import statistics

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.evaluation.bootstrap import Difference, interval_of, paired, resamples, student_t, widened
from marft.evaluation.trajectories.ratio import Ratio

TIMES = 1000
Parts = npt.NDArray[np.float64]
RATIOS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.builds(Ratio, st.integers(0, 5), st.integers(0, 5)), max_size=8
)


def accuracies(draw: np.random.Generator, tasks: int) -> tuple[Parts, float]:
    """Tasks of different difficulty: what is solved before is often solved after → [N, M, 4], and the true gain."""
    ease = draw.beta(2, 2, (tasks, TIMES))
    before, after = draw.random((2, tasks, TIMES)) < np.stack([ease, ease + 0.3 * (1 - ease)])
    ones = np.ones((tasks, TIMES))
    return np.stack([before, ones, after, ones], -1).astype(float), 0.15


def error_rates(draw: np.random.Generator, tasks: int) -> tuple[Parts, float]:
    """Calls that fail, of a number of calls that differs between tasks, as does how often they fail."""
    rate = draw.beta(2, 8, (tasks, TIMES))
    calls = 1 + draw.poisson(3, (2, tasks, TIMES))
    failed = draw.binomial(calls, np.stack([rate, rate / 2]))
    return np.stack([failed[0], calls[0], failed[1], calls[1]], -1).astype(float), -0.1


def costs(draw: np.random.Generator, tasks: int) -> tuple[Parts, float]:
    """Tokens an episode: some tasks take many times more than others."""
    size = np.exp(draw.normal(0, 0.5, (tasks, TIMES)))
    before, after = size * np.exp(draw.normal(0, 0.3, (2, tasks, TIMES)))
    ones = np.ones((tasks, TIMES))
    return np.stack([before, ones, 1.5 * after, ones], -1), 0.5 * float(np.exp((0.5**2 + 0.3**2) / 2))


def covered(simulate: object, tasks: int, seed: int) -> float:
    parts, truth = simulate(np.random.default_rng(seed), tasks)  # type: ignore[operator]
    found = interval_of(parts, resamples(tasks, seed + 1, 1000))
    return sum(1 for interval in found if interval and interval[0] <= truth <= interval[1]) / TIMES


@pytest.mark.parametrize("tasks", [50, 200])
@pytest.mark.parametrize("simulate", [accuracies, error_rates, costs])
def test_95_of_100_intervals_cover_the_truth(simulate: object, tasks: int) -> None:
    seeds = 10 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 1
    shares = [covered(simulate, tasks, 100 * seed) for seed in range(seeds)]
    assert shares[0] >= 0.93, shares
    assert 0.935 <= np.mean(shares) <= 0.98, shares


def test_an_interval_is_that_of_differences_on_the_same_tasks() -> None:
    before = {str(n): Ratio(float(n % 2)) for n in range(100)}
    after = {name: Ratio(ratio.amount + 0.25 * (int(name) < 4)) for name, ratio in before.items()}
    found = paired(before, after)
    assert found is not None
    assert found.gain == pytest.approx(0.01)
    assert found.interval is not None
    assert found.interval[1] - found.interval[0] < 0.03  # unpaired, accuracies alone would spread it by 0.28


def test_what_does_not_differ_has_no_interval() -> None:
    same = {"a": Ratio(1.0), "b": Ratio(0.0)}
    assert paired(same, same) == Difference(0.5, 0.5, None, 2)
    assert paired(same, {"c": Ratio(1.0)}) is None
    assert paired({"a": Ratio(0, 0)}, {"a": Ratio(1, 1)}) is None
    assert paired({"a": Ratio(1, 1)}, {"a": Ratio(0, 0)}) is None


def test_two_tasks_that_differ_have_an_interval_as_wide_as_is_asked_and_of_the_seeds_own_draws() -> None:
    before = {name: Ratio(0.0) for name in "abcdefgh"}
    after = {name: Ratio(float(number)) for number, name in enumerate(before)}
    few = paired({"a": Ratio(0.0), "b": Ratio(0.0)}, {"a": Ratio(1.0), "b": Ratio(0.0)})
    assert few is not None
    assert few.interval is not None
    asked = [(0.95, 0), (0.5, 0), (0.95, 1)]
    found = [paired(before, after, level=level, seed=seed) for level, seed in asked]
    wide, narrow, other = [one.interval for one in found if one and one.interval]
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert wide != other


def test_an_interval_is_students_with_the_deviation_of_every_resampled_difference() -> None:
    draw = np.random.default_rng(0)
    parts = draw.integers(1, 9, (6, 1, 4)).astype(float)
    counts = resamples(6, 3, 500)
    sums = [sum(count * part for count, part in zip(row, parts[:, 0], strict=True)) for row in counts]
    differences = [after / of - before / out_of for before, out_of, after, of in sums]
    before, of, after, out_of = parts[:, 0].sum(0)
    centre, reach = after / out_of - before / of, (6 / 5) ** 0.5 * 2.015 * statistics.pstdev(differences)  # t of 5
    assert interval_of(parts, counts, 0.9) == [pytest.approx((centre - reach, centre + reach), rel=1e-3)]


def test_where_fewer_than_half_of_the_draws_say_anything_there_is_no_interval() -> None:
    parts = np.array([[[1, 1, 0, 0]], [[0, 0, 0, 1]], [[0, 0, 1, 1]]], float)
    counts = np.array([[1, 1, 1], [1, 2, 0], [3, 0, 0], [0, 3, 0], [0, 0, 3]], float)
    assert interval_of(parts, counts) == [None]
    assert interval_of(parts, counts[:4]) != [None]


@settings(max_examples=25)
@given(RATIOS, RATIOS)
def test_a_gain_is_of_the_tasks_that_both_have(before: dict[str, Ratio], after: dict[str, Ratio]) -> None:
    both = before.keys() & after.keys()
    sides = [
        (sum(side[task].amount for task in both), sum(side[task].out_of for task in both)) for side in (before, after)
    ]
    found = paired(before, after, seed=1)
    if not all(out_of for _, out_of in sides):
        assert found is None
        return
    assert found is not None
    assert found.gain == pytest.approx(sides[1][0] / sides[1][1] - sides[0][0] / sides[0][1])
    assert found == paired(dict(reversed(before.items())), after, seed=1)
    assert found.interval is None or found.interval[0] <= found.interval[1]


@pytest.mark.parametrize(("freedom", "exact"), [(4, 2.7764), (9, 2.2622), (49, 2.0096), (199, 1.9720)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, exact: float) -> None:
    assert student_t(0.975, freedom) == pytest.approx(exact, rel=0.005)
    assert widened(freedom + 1, 0.95) > exact
