"""Several attempts at a task: how likely one of k solves it, and how likely all do."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.evaluation.ratios import Ratio, compute_pass_ratios, pass_all, pass_at


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = [any(place < c for place in drawn) for drawn in combinations(range(n), k)]
    assert pass_at(k, n, c) == pytest.approx(sum(draws) / len(draws), abs=1e-15)
    assert pass_at(1, n, c) == pytest.approx(c / n)


@given(st.integers(1, 7), st.data())
def test_pass_hat_k_is_the_share_of_draws_that_hold_nothing_but_successes(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = [all(place < c for place in drawn) for drawn in combinations(range(n), k)]
    assert pass_all(k, n, c) == pytest.approx(sum(draws) / len(draws), abs=1e-15)
    assert pass_all(1, n, c) == pytest.approx(pass_at(1, n, c))


def test_each_task_has_the_powers_of_2_that_it_was_attempted_and_the_number_of_attempts() -> None:
    found = compute_pass_ratios({"all": (5, 3), "some": (3, 3), "one": (1, 0), "none": (0, 0)}, 5)
    assert list(found["all"]) == ["pass@2", "pass@4", "pass@5", "pass^2", "pass^4", "pass^5", "avg@5"]
    assert {name: share.numerator for name, share in found["all"].items()} == pytest.approx(
        {"pass@2": 0.9, "pass@4": 1.0, "pass@5": 1.0, "pass^2": 0.3, "pass^4": 0.0, "pass^5": 0.0, "avg@5": 0.6}
    )
    assert {name: share.numerator for name, share in found["some"].items()} == {
        "pass@2": 1.0,
        "pass^2": 1.0,
        "avg@5": 1.0,
    }
    assert {name: share.numerator for name, share in found["one"].items()} == {"avg@5": 0.0}
    assert found["none"] == {}
    assert compute_pass_ratios({"t": (1, 1)}, 1) == {"t": {}}
    assert compute_pass_ratios({"t": (2, 1)}, 2) == {
        "t": {"pass@2": Ratio(1.0), "pass^2": Ratio(0.0), "avg@2": Ratio(0.5)}
    }
    names = [f"pass{kind}{k}" for kind in "@^" for k in (2, 4, 8, 9)]
    assert list(compute_pass_ratios({"t": (9, 1)}, 9)["t"]) == [*names, "avg@9"]
