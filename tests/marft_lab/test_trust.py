"""Whether a world model is believed: the test is that of plain loops, leaves right models alone, and finds wrong ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft_lab.anytime_test import BET_FRACTIONS
from marft_lab.world_models.counts import CountModel, FittedCountModel
from marft_lab.world_models.interface import History, ObservedTransition, Outcome, Prediction
from marft_lab.world_models.trust import PredictionErrors, Trust, compute_errors, step_excess

EXCESS = st.floats(-1, 1, allow_nan=False)


def heard(steps: tuple[float, ...], reward: float) -> PredictionErrors:
    return PredictionErrors(steps, reward, 1.0, 0.0, 0.0)


def slow_trust(episodes: list[tuple[tuple[float, ...], float]], bound: float, alarm: float) -> list[bool]:
    """Whether the model is on after each episode, bet by bet and observation by observation."""
    on, found = True, []
    capital = {"steps": [1.0] * len(BET_FRACTIONS), "rewards": [1.0] * len(BET_FRACTIONS)}
    for steps, reward in episodes:
        for name, observed in (("steps", steps), ("rewards", (reward,) if steps else ())):
            for excess in observed:
                for place, bet in enumerate(BET_FRACTIONS):
                    x, mean = (excess + 1) / 2, (bound + 1) / 2
                    if not on:
                        x, mean = 1 - x, 1 - mean
                    capital[name][place] = max(capital[name][place], 1.0) * (1 + bet * (x / mean - 1))
        won = [sum(of) / len(BET_FRACTIONS) >= 1 / alarm for of in capital.values()]
        if any(won) if on else all(won):
            on = not on
            capital = {"steps": [1.0] * len(BET_FRACTIONS), "rewards": [1.0] * len(BET_FRACTIONS)}
        found.append(on)
    return found


@given(
    st.lists(st.tuples(st.lists(EXCESS, max_size=6).map(tuple), EXCESS), max_size=12),
    st.floats(0, 0.9), st.sampled_from([0.5, 0.2, 0.05]),
)  # fmt: skip
@settings(max_examples=25)
def test_capital_is_that_of_plain_loops(
    episodes: list[tuple[tuple[float, ...], float]], bound: float, alarm: float
) -> None:
    trust, found = Trust(), []
    for steps, reward in episodes:
        trust = trust.update([heard(steps, reward)], bound, alarm)
        found.append(trust.enabled)
    assert found == slow_trust(episodes, bound, alarm)


@pytest.mark.parametrize("on", [True, False])
def test_each_bet_gains_by_what_is_above_the_bound_and_while_it_is_off_by_what_is_below(on: bool) -> None:
    """A bound of 0.2 is 0.6 of the way from −1 to 1; 0.5 is 0.75 of it, and −0.5 is 0.25."""
    trust = Trust(enabled=on).update([heard((0.5, -0.5), 0.5)], 0.2, 1e-9)
    first, second = (0.75 / 0.6, 0.25 / 0.6) if on else (0.25 / 0.4, 0.75 / 0.4)
    once = [1 + bet * (first - 1) for bet in BET_FRACTIONS]
    twice = [max(capital, 1.0) * (1 + bet * (second - 1)) for capital, bet in zip(once, BET_FRACTIONS, strict=True)]
    assert np.exp(trust.steps) == pytest.approx(np.array(twice))
    assert np.exp(trust.rewards) == pytest.approx(np.array(once))


def test_it_is_switched_off_by_a_capital_of_one_over_the_alarm() -> None:
    silent = heard((), 0.0)
    for above, on in ((-1e-9, True), (1e-9, False)):
        logs = (float(np.log(20)) + above,) * len(BET_FRACTIONS)
        assert Trust(steps=logs).update([silent], 0.25, 0.05).enabled is on
        assert Trust(rewards=logs).update([silent], 0.25, 0.05).enabled is on
    assert not Trust().update([silent], 0.25, 1.0).enabled, "of just that, too"


@given(st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=20)
def test_a_model_that_is_right_misses_as_often_as_it_expects(count: int, seed: int) -> None:
    """However much chance is in the world: the mean over what comes, by the model's own probabilities, is 0."""
    p = np.random.default_rng(seed).dirichlet(np.ones(count))
    said = Prediction(tuple(Outcome(f"o{n}", 0.0) for n in range(count)), p, 0.0)
    assert sum(p[n] * step_excess(said, f"o{n}")[0] for n in range(count)) == pytest.approx(0.0, abs=1e-12)


def test_one_that_is_sure_and_wrong_is_off_by_all_there_is() -> None:
    sure = Prediction((Outcome("x", 0.0),), np.ones(1), 0.0)
    assert step_excess(sure, "y") == (1.0, 1.0)
    assert step_excess(sure, "x") == (0.0, 0.0)


def slippery(seed: int, count: int) -> list[list[ObservedTransition]]:
    """Episodes of ten steps in a world where a third of all steps go elsewhere and a fifth pay."""
    stream = np.random.default_rng(seed)
    return [
        [
            ObservedTransition(History((f"at {at}",)), "go", Outcome(f"at {to}", float(pays)))
            for at, to, pays in zip(
                stream.integers(3, size=10), stream.integers(3, size=10), stream.random(10) < 0.2, strict=True
            )
        ]
        for _ in range(count)
    ]


def test_a_model_that_is_right_is_hardly_ever_switched_off() -> None:
    """Five runs of a thousand steps in a world of chance, at one false alarm in ten thousand."""
    off = 0
    for seed in range(5):
        episodes = slippery(seed, 120)
        model = CountModel().fit([one for lived in episodes[:20] for one in lived], 0)
        trust = Trust().update([compute_errors(model, lived, 0.3, {"": 5.0}) for lived in episodes[20:]], 0.25, 1e-4)
        off += not trust.enabled
    assert off == 0


@pytest.mark.parametrize("what", ["following", "reward"])
def test_a_model_of_another_world_is_found_out_in_some_ten_episodes(what: str) -> None:
    episodes = slippery(0, 60)
    other = [
        [
            ObservedTransition(
                one.history, one.action,
                Outcome("at 7" if what == "following" else one.outcome.next_observation,
                        5.0 - one.outcome.reward if what == "reward" else one.outcome.reward),
            )
            for one in lived
        ]
        for lived in episodes[:20]
    ]  # fmt: skip
    model = CountModel().fit([one for lived in other for one in lived], 0)
    trust, count = Trust(), 0
    while trust.enabled:
        trust = trust.update([compute_errors(model, episodes[20 + count], 0.3, {"": 5.0})], 0.25, 1e-4)
        count += 1
    assert count <= 30


def test_steps_that_it_does_not_know_are_not_held_against_it() -> None:
    model = CountModel().fit([ObservedTransition(History(("a",)), "go", Outcome("b", 0.0))] * 9, 0)
    told = [ObservedTransition(History((at,)), "go", Outcome("b", reward)) for at, reward in (("a", 0.0), ("z", 5.0))]
    said = compute_errors(model, told, 0.2, {"": 1.0})
    assert said.steps == (0.0,)
    assert said.certain_fraction == 0.5
    assert said.reward == 0.0


def test_what_a_model_says_of_an_episode_is_summed_over_the_steps_that_it_knows() -> None:
    """Three of four are x, which pay 1, and the model expects as much."""
    model = FittedCountModel({
        (History(("s",)), "go"): Prediction((Outcome("x", 1.0), Outcome("y", 0.0)), np.array([0.75, 0.25]), 0.3),
        (History(("s",)), "jump"): Prediction((Outcome("x", 1.0),), np.ones(1), 0.31),
    })  # fmt: skip
    x, y = (ObservedTransition(History(("s",)), "go", outcome) for outcome in (Outcome("x", 1.0), Outcome("y", 0.0)))
    unknown = ObservedTransition(History(("s",)), "jump", Outcome("x", 9.0))
    said = compute_errors(model, [unknown, x, y], 0.3, {"": 4.0})
    assert said.steps == pytest.approx((0.625 - 0.75, 0.625 - 0.25))
    assert (said.certain_fraction, said.missed) == pytest.approx((2 / 3, (0.25 + 0.75) / 2))
    assert said.reward_error == pytest.approx(abs(1 - 0.75 + 0 - 0.75))
    assert said.reward == pytest.approx((0.5 - 2 * (0.75 * 0.25 + 0.25 * 0.75)) / 4)
    assert compute_errors(model, [y] * 9, 0.3, {"": 1.0}).reward == 1.0, "no more than all there is"
    assert compute_errors(model, [x, x, y, y], 0.3, {"": 0.1}).reward == -1.0
    assert compute_errors(model, [], 0.3, {"": 1.0}) == PredictionErrors((), 0.0, 0.0, 0.0, 0.0)
    assert compute_errors(model, [unknown], 0.3, {"": 1.0}) == PredictionErrors((), 0.0, 0.0, 0.0, 0.0)
    never = replace(x, action="fly")
    assert compute_errors(model, [never], 1.0, {"": 1.0}) == PredictionErrors((), 0.0, 0.0, 0.0, 0.0), (
        "whatever the cutoff"
    )


@pytest.mark.parametrize(("paid", "excess"), [(0.0, 0.0), (1.0, 1.0)])
def test_where_all_returns_are_the_same_any_other_is_wrong(paid: float, excess: float) -> None:
    model = CountModel().fit([ObservedTransition(History(("a",)), "go", Outcome("", paid))] * 9, 0)
    assert (
        compute_errors(model, [ObservedTransition(History(("a",)), "go", Outcome("", 0.0))], 0.2, {"": 0.0}).reward
        == excess
    )


def test_where_all_returns_are_the_same_neither_chance_nor_rounding_is_held_against_a_model() -> None:
    def excess(said: Prediction, paid: float) -> float:
        lived = [ObservedTransition(History(("s",)), "go", Outcome("0", paid))]
        return compute_errors(FittedCountModel({(History(("s",)), "go"): said}), lived, 0.2, {"": 0.0}).reward

    tenths = Prediction(tuple(Outcome(str(n), 0.7) for n in range(10)), np.full(10, 0.1), 0.0)
    assert abs(0.7 - tenths.reward()) > tenths.reward_deviation(), "by rounding"
    assert excess(tenths, 0.7) == 0.0
    assert excess(tenths, 0.70001) == 1.0
    coin = Prediction((Outcome("0", 0.0), Outcome("1", 1.0)), np.full(2, 0.5), 0.0)
    assert excess(coin, 0.0) == 0.0, "it expects to be off by as much"


def test_bets_that_lost_begin_anew_so_that_a_long_good_time_hides_nothing() -> None:
    bad = [heard((1.0,) * 5, 0.0)] * 20
    quick, late = Trust(), Trust().update([heard((-0.5,) * 5, -0.5)] * 500, 0.25, 1e-4)
    counts = []
    for trust in (quick, late):
        count = 0
        while trust.enabled:
            trust, count = trust.update(bad[:1], 0.25, 1e-4), count + 1
        counts.append(count)
    assert counts[1] <= counts[0] + 1


def test_rewards_of_agents_that_are_turned_round_are_seen_where_the_team_earns_nothing() -> None:
    """As where sides are opposed."""

    def model(sign: float) -> FittedCountModel:
        outcome = Outcome("", 0.0, (("p", sign), ("q", -sign)))
        return FittedCountModel({(History(("s",)), "go"): Prediction((outcome,), np.ones(1), 0.0)})

    lived = [ObservedTransition(History(("s",)), "go", Outcome("", 0.0, (("p", 1.0), ("q", -1.0))))]
    widths = {"": 0.0, "p": 2.0, "q": 2.0}
    right, wrong = (compute_errors(model(sign), lived, 0.2, widths) for sign in (1.0, -1.0))
    assert (right.reward, wrong.reward, wrong.reward_error) == (0.0, 1.0, 4.0)
    assert not Trust().update([wrong] * 30, 0.25, 1e-4).enabled
    assert Trust().update([right] * 30, 0.25, 1e-4).enabled


def test_it_comes_back_where_steps_and_rewards_are_right_and_every_switch_begins_anew() -> None:
    bad, good, half = heard((1.0,) * 5, 1.0), heard((-1.0,) * 5, -1.0), heard((-1.0,) * 5, 1.0)
    off = Trust()
    while off.enabled:
        off = off.update([bad], 0.25, 1e-4)
    assert off == Trust(enabled=False)
    assert not off.update([half] * 200, 0.25, 1e-4).enabled
    assert off.update([good] * 200, 0.25, 1e-4).enabled
