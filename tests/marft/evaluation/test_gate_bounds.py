"""Gates that hold where it is sure: one-sided bounds of shares and of their differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.evaluation.gates import Gate, check_gates
from marft.evaluation.intervals import Z95, Z95_ONE_SIDED, gain_bounds, wilson_share_interval
from marft.evaluation.ratios import Ratio, clustered_interval
from tests.marft.evaluation.test_gates import MISSED, SOLVED, evaluation

DIFFERENCES = st.lists(st.floats(-1, 1), min_size=1, max_size=40)


def exact(gains: list[float]) -> float:
    """The share at which so few of so many come in one of twenty draws."""
    count, n = math.ceil(math.fsum(gains) - 1e-9), len(gains)
    shares = np.linspace(0, 1, 200_001)
    chance = sum(math.comb(n, k) * shares**k * (1 - shares) ** (n - k) for k in range(count + 1))
    return 1.0 if count >= n else float(shares[np.asarray(chance) >= 0.05].max())


@given(st.integers(20, 120), st.floats(0.005, 0.2))
def test_where_all_turn_one_way_the_truth_is_above_the_bound_in_at_most_one_of_twenty(tasks: int, share: float) -> None:
    """Over all counts, by their chances."""
    chances = [math.comb(tasks, k) * share**k * (1 - share) ** (tasks - k) for k in range(tasks + 1)]
    missed = sum(
        chance
        for count, chance in enumerate(chances)
        if gain_bounds([1.0] * count + [0.0] * (tasks - count))[1] < share
    )
    assert missed <= 0.05 + 1e-6


@given(DIFFERENCES)
def test_bounds_of_a_gain_are_those_of_the_slow_reference(differences: list[float]) -> None:
    """Two more tasks, of which one has gained all and one has lost all; then Wald's interval; and where all turn one way
    no less than the exact bound of a share."""
    more = [*differences, 1.0, -1.0]
    mean = math.fsum(more) / len(more)
    variance = math.fsum((one - mean) ** 2 for one in more) / len(more)
    half = 1.644854 * math.sqrt(variance / len(more))
    low, high = mean - half, mean + half
    if min(differences) >= 0:
        high = max(high, exact(differences))
    if max(differences) <= 0:
        low = min(low, -exact([-one for one in differences]))
    expected = max(-1.0, low), min(1.0, high)
    assert gain_bounds(differences) == pytest.approx(expected, abs=1e-5)


@given(DIFFERENCES)
def test_what_is_lost_is_bounded_as_what_is_gained(differences: list[float]) -> None:
    low, high = gain_bounds(differences)
    assert gain_bounds([-one for one in differences]) == pytest.approx((-high, -low), abs=1e-9)
    assert low <= high


def test_nobody_knows_anything_of_no_tasks() -> None:
    assert gain_bounds([]) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("tasks", "before", "after"), [(50, 0.1, 0.1), (100, 0.02, 0.12), (200, 0.5, 0.5), (100, 0.0, 0.1)]
)
def test_the_truth_is_above_the_bound_in_at_most_one_of_twenty_evaluations(
    tasks: int, before: float, after: float
) -> None:
    """Solved or not, independently, before and after: 4000 evaluations; a point is left for their number and the bound's
    approximation."""
    draws = np.random.default_rng(0).random((2, 4000, tasks))
    differences = (draws[1] < after).astype(float) - (draws[0] < before)
    missed = np.mean([gain_bounds(row.tolist())[1] < after - before for row in differences])
    assert missed <= 0.06


BASE = evaluation(attack_success=[MISSED] * 100, accuracy=[SOLVED] * 50 + [MISSED] * 50)


@pytest.mark.parametrize(
    ("obeyed", "gate", "failed"),
    [
        (0, "attack_success bound > +5%", False), (4, "attack_success bound > +5%", True),
        (4, "attack_success > +5%", False), (0, "attack_success after bound > 2%", True),
        (0, "attack_success after bound > 5%", False), (0, "accuracy bound < -2%", True), (0, "accuracy bound < -5%", False),
    ],
)  # fmt: skip
def test_a_bound_asks_for_more_than_what_was_seen(obeyed: int, gate: str, failed: bool) -> None:
    after = evaluation(
        attack_success=[SOLVED] * obeyed + [MISSED] * (100 - obeyed), accuracy=[SOLVED] * 50 + [MISSED] * 50
    )
    (verdict,) = check_gates([gate], BASE, after)
    assert verdict.failed is failed
    assert ("one-sided 95 %" in verdict.reason) is ("bound" in gate)


def test_the_bound_of_what_is_after_is_wilsons_one_sided() -> None:
    after = evaluation(attack_success=[SOLVED] * 4 + [MISSED] * 96)
    (verdict,) = check_gates(["attack_success after bound > 1%"], BASE, after)
    assert f"at most {100 * wilson_share_interval(0.04, 100, Z95_ONE_SIDED)[1]:.1f}%" in verdict.reason


def several(**tasks: tuple[float, float]) -> dict[str, Any]:
    """An evaluation of how many attempts at each task were attacked with success."""
    return {"measured": {task: {"attack_success": [*pair]} for task, pair in tasks.items()}}


def test_a_bound_is_of_the_shares_of_tasks_that_both_sides_know_something_of() -> None:
    before = several(a=(1, 4), b=(2, 2), gone=(0, 1), unknown=(0, 0), then=(1, 1))
    after = several(a=(3, 4), b=(1, 2), new=(0, 1), unknown=(1, 1), then=(0, 0))
    low, high = gain_bounds([0.5, -0.5])
    found = clustered_interval([Ratio(3, 4), Ratio(1, 2)], 4, Z95_ONE_SIDED)
    assert found is not None
    least, most = found[1]
    said = {
        "attack_success bound < 0": f"at least {100 * low:+.1f} points",
        "attack_success bound > 0": f"at most {100 * high:+.1f} points",
        "attack_success after bound < 0": f"at least {100 * least:.1f}%",
        "attack_success after bound > 0": f"at most {100 * most:.1f}%",
    }
    for gate, sure in said.items():
        (verdict,) = check_gates([gate], before, after)
        assert verdict.reason.endswith(f"; {sure}, one-sided 95 %)")


def test_attempts_count_for_more_than_tasks_where_tasks_are_alike() -> None:
    side = several(**{f"t{n}": (2, 4) for n in range(20)}, one=(1, 1))
    (verdict,) = check_gates(["attack_success after bound > 0"], side, side)
    found = clustered_interval([Ratio(2, 4)] * 20 + [Ratio(1, 1)], 4, Z95_ONE_SIDED)
    assert found is not None
    assert f"at most {100 * found[1][1]:.1f}%" in verdict.reason
    assert found[1][1] < wilson_share_interval(found[0], 21, Z95_ONE_SIDED)[1]


def test_where_no_task_is_known_on_both_sides_a_bound_is_all_that_can_be() -> None:
    before, after = several(a=(1, 1), b=(0, 0)), several(a=(0, 0), b=(0, 1))
    gates = ["attack_success after bound > 5%", "attack_success after bound < 5%", "attack_success bound > 5%"]
    verdicts = check_gates(gates, before, after)
    assert [verdict.failed for verdict in verdicts] == [True] * 3
    for verdict, sure in zip(verdicts, ("at most 100.0%", "at least 0.0%", "at most +100.0 points"), strict=True):
        assert verdict.reason.endswith(f"; {sure}, one-sided 95 %)")


@pytest.mark.parametrize("odd", [(1.5, 1.0), (-0.5, 1.0)])
def test_one_task_with_more_than_all_or_less_than_nothing_is_enough_for_no_bound(odd: tuple[float, float]) -> None:
    side = evaluation(reward=[(0.5, 1.0), odd])
    for gate in ("reward bound > +5%", "reward after bound > +5%"):
        with pytest.raises(ValueError, match="reward is no share from 0 to 1"):
            check_gates([gate], side, side)


def test_a_bound_is_of_shares() -> None:
    with pytest.raises(ValueError, match="a bound is of shares"):
        Gate.parse("cost_tokens bound > +5%")
    side = evaluation(reward=[(7.0, 1.0)] * 3)
    with pytest.raises(ValueError, match="no share from 0 to 1"):
        check_gates(["reward bound > +5%"], side, side)


def test_bounds_are_the_published_ones() -> None:
    """The example of ``ci.prop.ps`` of the R package statpsych, by Bonett: 26 of 48 gained, 4 lost, two-sided 95 %."""
    differences = [1.0] * 26 + [-1.0] * 4 + [0.0] * 18
    assert gain_bounds(differences, Z95) == pytest.approx((0.2548067, 0.6251933), abs=1e-6)


def test_how_many_tasks_a_gate_takes_is_as_the_page_says() -> None:
    """docs/safety.md: 59 where nothing differs, at +5 %; 60 where a tenth turns each way, at +10 %."""
    alike = [gain_bounds([0.0] * n)[1] <= 0.05 for n in (58, 59)]
    turned = [
        gain_bounds([1.0] * (n // 10) + [-1.0] * (n // 10) + [0.0] * (n - n // 10 * 2))[1] <= 0.1 for n in (50, 60)
    ]
    assert (alike, turned) == ([False, True], [False, True])
