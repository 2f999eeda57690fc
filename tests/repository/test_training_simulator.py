"""The simulation of a run: it counts what it plays, keeps its lag, and comes out as closed forms do where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.training_simulator import SimulationConfig, Turn, simulate
from hypothesis import given
from hypothesis import strategies as st


def fixed(*turns: tuple[float, float]) -> SimulationConfig:
    """One engine with room for all, a token a second however many rows there are."""
    drawn = [Turn(*turn) for turn in turns]
    return SimulationConfig(
        1, 1000, lambda _: 1.0, lambda _: drawn, 2, 3, learning_seconds=7.0, publishing_seconds=0.5, steps=4
    )


def exponential(tokens: float, wait: float, turns: int) -> object:
    def draw(random: np.random.Generator) -> Sequence[Turn]:
        return [Turn(random.exponential(tokens), random.exponential(wait)) for _ in range(turns)]

    return draw


@st.composite
def scenes(draw: st.DrawFn) -> SimulationConfig:
    slow = draw(st.floats(0.0, 0.3))
    return SimulationConfig(
        engines=draw(st.integers(1, 4)),
        slots=draw(st.integers(1, 6)),
        seconds_per_token=lambda rows: 1.0 + slow * rows,
        sample_turns=exponential(draw(st.floats(0.5, 9.0)), draw(st.floats(0.0, 5.0)), draw(st.integers(1, 3))),  # type: ignore[arg-type]
        groups_per_step=draw(st.integers(1, 4)),
        episodes_per_group=draw(st.integers(1, 4)),
        learning_seconds=draw(st.floats(0.0, 30.0)),
        publishing_seconds=draw(st.floats(0.0, 3.0)),
        lag=draw(st.integers(0, 3)),
        steps=draw(st.integers(1, 6)),
        seed=draw(st.integers(0, 99)),
    )


@given(scenes())
def test_every_group_that_is_learned_from_was_started_and_finished_once(scene: SimulationConfig) -> None:
    out = simulate(scene)
    assert out.trained == scene.steps * scene.groups_per_step == len(out.ages)
    assert out.trained <= out.finished <= out.started <= (scene.steps + scene.lag + 1) * scene.groups_per_step


@given(scenes())
def test_nothing_is_learned_from_that_is_older_than_the_lag(scene: SimulationConfig) -> None:
    assert all(0 <= age <= scene.lag for age in simulate(scene).ages)


@given(scenes())
def test_nobody_is_busy_for_longer_than_there_is_time(scene: SimulationConfig) -> None:
    out = simulate(scene)
    for share in (out.engine_utilization(scene), out.slot_utilization(scene), out.learner_utilization()):
        assert 0 <= share <= 1 + 1e-9


@given(scenes())
def test_the_same_seed_gives_the_same_run(scene: SimulationConfig) -> None:
    assert simulate(scene).ends == simulate(scene).ends


def test_without_a_lag_a_step_is_the_sum_of_its_phases() -> None:
    out = simulate(fixed((10.0, 2.0), (5.0, 1.0)))
    assert np.diff([0.0, *out.ends]) == pytest.approx([10 + 2 + 5 + 1 + 7 + 0.5] * 4)


def test_with_a_lag_a_step_is_the_longer_of_its_sides() -> None:
    scene = replace(fixed((3.0, 0.0)), lag=1, steps=12)
    assert np.diff(simulate(scene).ends)[1:] == pytest.approx(7.5)  # the learner, always busy
    long = replace(fixed((40.0, 0.0)), lag=1, steps=12)
    ends = simulate(long).ends
    assert (ends[-1] - ends[1]) / 10 == pytest.approx((40 + 7.5) / 2)  # two steps' groups are under way at a time


def test_one_slot_works_through_its_rows_one_after_the_other() -> None:
    """Deterministic service, all at once: a step of n episodes of s seconds on one slot takes n·s."""
    scene = SimulationConfig(1, 1, lambda _: 2.0, lambda _: [Turn(5.0, 0.0)], 3, 4, learning_seconds=1.0, steps=2)
    assert simulate(scene).ends == pytest.approx([12 * 10.0 + 1.0, 2 * (12 * 10.0 + 1.0)])


def test_rows_that_slow_each_other_down_are_a_shared_processor() -> None:
    """With a token's seconds proportional to the rows, equal rows end together after n·s, as in processor sharing."""
    scene = SimulationConfig(
        1, 8, lambda rows: float(rows), lambda _: [Turn(5.0, 0.0)], 1, 8, learning_seconds=0.0, steps=1
    )
    assert simulate(scene).seconds == pytest.approx(8 * 5.0)


def test_rows_of_different_lengths_leave_a_shared_processor_one_by_one() -> None:
    lengths = iter([1.0, 2.0, 3.0])
    scene = SimulationConfig(1, 3, lambda rows: float(rows), lambda _: [Turn(next(lengths), 0.0)], 1, 3, 0.0, steps=1)
    assert simulate(scene).seconds == pytest.approx(3 * 1 + 2 * 1 + 1 * 1)


def test_a_lag_makes_up_for_long_episodes() -> None:
    scene = SimulationConfig(
        4, 16, lambda rows: 0.02 + 0.001 * rows, exponential(200, 5, 2), 16, 4, 8.0, 0.5, steps=20  # type: ignore[arg-type]
    )  # fmt: skip
    seconds = [simulate(replace(scene, lag=lag)).seconds for lag in (0, 1, 2)]
    assert seconds[0] > 1.2 * seconds[1]
    assert seconds[1] >= 0.99 * seconds[2]


def test_whoever_waits_for_a_slot_gets_it_in_the_order_of_asking() -> None:
    lengths = iter([10.0, 20.0, 30.0, 40.0])
    scene = SimulationConfig(1, 1, lambda _: 1.0, lambda _: [Turn(next(lengths), 0.0)], 1, 1, 0.0, lag=2, steps=2)
    assert simulate(scene).ends == pytest.approx([10.0, 30.0])


def test_engines_share_out_those_that_wait_too() -> None:
    scene = SimulationConfig(2, 1, lambda _: 1.0, lambda _: [Turn(10.0, 0.0)], 4, 1, 0.0, steps=1)
    assert simulate(scene).seconds == pytest.approx(20.0)  # two on each


def test_shares_of_time_are_those_of_what_was_written_and_learned() -> None:
    scene = fixed((10.0, 2.0), (5.0, 1.0))  # 25.5 seconds a step: 15 written in 6 of 1,000 slots, 7 learned
    out = simulate(scene)
    assert out.engine_utilization(scene) == pytest.approx(15 / 25.5)
    assert out.slot_utilization(scene) == pytest.approx(6 * 15 / 25.5 / 1000)
    assert out.learner_utilization() == pytest.approx(7 / 25.5)
    full = SimulationConfig(2, 4, lambda rows: float(rows), lambda _: [Turn(5.0, 0.0)], 2, 4, 0.0, steps=1)
    assert (simulate(full).engine_utilization(full), simulate(full).slot_utilization(full)) == pytest.approx((1.0, 1.0))


def test_with_a_lag_groups_are_as_old_as_they_may_be_where_the_learner_is_what_takes_the_time() -> None:
    ages = simulate(replace(fixed((3.0, 0.0)), lag=1, steps=6)).ages
    assert ages == [0, 0] + [1] * 10
