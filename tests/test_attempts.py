"""Several attempts at a task: how likely one of k solves it, and how likely all do."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.evaluation.trajectories.attempts import pass_all, pass_at


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
