"""Betting against a bounded mean, held to plain loops; and that one may look after every session."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft_lab.anytime_test import BET_FRACTIONS, TESTED_MEANS, log_capital, log_factors, p_value
from marft_lab.shadow.sequential_test import SequentialTest, Verdict
from marft_lab.shadow.settings import ShadowSettings

UNIT = st.floats(0, 1, allow_subnormal=False)
INNER = st.floats(0.01, 0.99)


def capital(observations: list[float], mean: float) -> list[float]:
    """After each observation: the average of what each bet has, as the formula says it."""
    had, after = [1.0 for _ in BET_FRACTIONS], []
    for x in observations:
        for place, bet in enumerate(BET_FRACTIONS.tolist()):
            had[place] *= 1 + bet * (x / mean - 1)
        after.append(sum(had) / len(had))
    return after


def verdict(differences: list[float], settings: ShadowSettings) -> tuple[str, float, float]:
    """The word and both p-values after all differences, as plain loops over the formulas."""
    width = settings.max_score - settings.min_score
    limit = (1 - settings.margin / width) / 2
    xs = [(d / width + 1) / 2 for d in differences]
    word, best, worst = "hold", 1.0, 1.0
    for count in range(1, len(xs) + 1):
        best = max(best, capital(xs[:count], limit)[-1])
        worst = max(worst, capital([1 - x for x in xs[:count]], 1 - limit)[-1])
        if count >= settings.min_sessions and worst >= 1 / settings.false_stops:
            word = "stop"
        elif count >= settings.min_sessions and best >= 1 / settings.false_promotions:
            word = "promote"
        if word != "hold" or count >= settings.max_sessions:
            break
    return word, min(1.0, 1 / best), min(1.0, 1 / worst)


def weighed(differences: list[float], settings: ShadowSettings) -> Verdict:
    evidence = SequentialTest(settings)
    for difference in differences:
        evidence.add(difference)
    return evidence.verdict


@given(st.lists(UNIT, min_size=1, max_size=30), INNER)
def test_capital_is_the_average_over_bets_of_the_product_over_observations(xs: list[float], mean: float) -> None:
    logs, found = np.zeros(len(BET_FRACTIONS)), []
    for x in xs:
        logs = logs + log_factors(x, mean)
        found.append(float(log_capital(logs)))
    assert found == pytest.approx([math.log(value) for value in capital(xs, mean)], abs=1e-9)


def test_bets_fall_by_the_root_of_2_from_nearly_all_and_means_are_even() -> None:
    assert pytest.approx([0.95 / math.sqrt(2) ** n for n in range(20)]) == BET_FRACTIONS
    assert pytest.approx([n / 400 for n in range(1, 400)]) == TESTED_MEANS


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_difference_that_rounding_has_put_beyond_its_bound_is_at_its_bound(sign: float) -> None:
    beyond, at = (weighed([sign * size] * 5, ShadowSettings(min_sessions=1)) for size in (1 + 1e-10, 1.0))
    assert (beyond.p_better, beyond.p_worse) == (at.p_better, at.p_worse)


def test_a_capital_that_no_number_holds_has_its_logarithm_all_the_same() -> None:
    logs = np.array([[0.0, 5000.0], [-5000.0, -5000.0]])
    assert log_capital(logs) == pytest.approx([5000.0 - math.log(2), -5000.0])


def test_a_p_value_is_1_over_the_largest_capital_and_at_most_1() -> None:
    assert [p_value(log) for log in (-1.0, 0.0)] == [1.0, 1.0]
    assert p_value(math.log(40)) == pytest.approx(0.025)


@given(UNIT, UNIT, INNER)
def test_no_bet_gains_on_average_where_the_mean_is_what_was_said(low: float, high: float, mean: float) -> None:
    low, high = low * mean, mean + high * (1 - mean)  # two values around the mean, drawn so that it is the mean
    if high - low < 1e-6:
        return
    often = (mean - low) / (high - low)
    expected = often * np.exp(log_factors(high, mean)) + (1 - often) * np.exp(log_factors(low, mean))
    assert expected == pytest.approx(np.ones(len(BET_FRACTIONS)), abs=1e-9)


@given(st.lists(UNIT, min_size=1, max_size=20), st.integers(0, len(TESTED_MEANS) - 2))
def test_capital_falls_as_the_mean_rises_so_what_is_not_refuted_is_an_interval(xs: list[float], at: int) -> None:
    low, high = (capital(xs, float(TESTED_MEANS[place]))[-1] for place in (at, at + 1))
    assert high <= low * (1 + 1e-9)


@given(
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=1, max_size=40), st.sampled_from([0.0, 0.1, 0.3]),
    st.integers(1, 10),
)  # fmt: skip
def test_verdicts_are_those_of_plain_loops(differences: list[float], margin: float, least: int) -> None:
    settings = ShadowSettings(margin=margin, min_sessions=least, max_sessions=30)
    found, (word, better, worse) = weighed(differences, settings), verdict(differences, settings)
    assert found.word == word
    assert (found.p_better, found.p_worse) == pytest.approx((better, worse), rel=1e-9)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=60))
def test_teams_that_change_places_change_promote_and_stop(differences: list[float]) -> None:
    settings = ShadowSettings(min_sessions=5)
    one, two = weighed(differences, settings), weighed([-d for d in differences], settings)
    assert {"promote": "stop", "stop": "promote", "hold": "hold"}[one.word] == two.word
    assert (one.lower, one.p_better) == pytest.approx((-two.upper, two.p_worse))


@given(st.lists(st.floats(-1, 1), max_size=40), st.floats(0.1, 50), st.floats(-5, 5))
def test_the_unit_of_scores_changes_nothing(differences: list[float], width: float, low: float) -> None:
    plain = weighed(differences, ShadowSettings(min_sessions=5, margin=0.1))
    scaled = weighed(
        [d * width for d in differences],
        ShadowSettings(min_sessions=5, margin=0.1 * width, min_score=low, max_score=low + width),
    )
    assert scaled.p_better == pytest.approx(plain.p_better, rel=1e-6)
    assert scaled.lower == pytest.approx(plain.lower * width, abs=1e-6 * width)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=80), st.sampled_from([0.0, 0.05, 0.2]))
def test_bounds_and_verdict_say_the_same(differences: list[float], margin: float) -> None:
    settings = ShadowSettings(margin=margin, min_sessions=1)
    found = weighed(differences, settings)
    assert (found.word == "promote") == (found.lower >= -margin - 1e-12)
    assert (found.word == "stop") == (found.upper <= -margin + 1e-12)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20))
def test_the_mean_is_that_of_the_differences_in_their_own_unit(differences: list[float]) -> None:
    found = weighed(differences, ShadowSettings(min_sessions=30, min_score=-1.0, max_score=2.0))
    assert found.mean == pytest.approx(sum(differences) / len(differences))
    assert found.sessions == len(differences)
    assert (found.word, found.final) == ("hold", False)


def test_nothing_is_said_before_the_least_and_what_is_held_at_the_most_is_final() -> None:
    settings = ShadowSettings(min_sessions=30, max_sessions=40)
    evidence = SequentialTest(settings)
    assert evidence.verdict.mean is None
    words = [evidence.add(1.0).word for _ in range(30)]
    assert words == [*["hold"] * 29, "promote"]
    assert evidence.add(-1.0).sessions == 30, "what comes after a verdict is not asked for"
    held = weighed([0.0] * 50, settings)
    assert (held.word, held.final, held.sessions) == ("hold", True, 40)


def test_peeking_after_every_session_promotes_hardly_any_that_is_not_better() -> None:
    generator, teams, sessions = np.random.default_rng(0), 400, 400
    x = (generator.binomial(1, 0.7, (teams, sessions)) - generator.binomial(1, 0.7, (teams, sessions)) + 1) / 2
    logs, promoted = np.zeros((teams, len(BET_FRACTIONS))), np.zeros(teams, bool)
    naive = np.zeros(teams, bool)
    for count in range(1, sessions + 1):
        logs += log_factors(x[:, count - 1], 0.5)
        promoted |= log_capital(logs) >= math.log(20)
        if count >= 30:
            seen = 2 * x[:, :count] - 1
            naive |= seen.mean(1) > 1.645 * seen.std(1, ddof=1) / math.sqrt(count)
    assert promoted.mean() <= 0.05
    assert naive.mean() > 0.15, "a test of fixed size that is looked at every time is none"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"min_score": 1.0, "max_score": 1.0}, "min_score must be less than max_score"),
        ({"margin": 1.0}, "nothing is worse by as much"),
        ({"score": "agreement"}, "by how much agreement may fall short"),
        ({"min_sessions": 10, "max_sessions": 9}, "fewer than min_sessions"),
    ],
)
def test_rules_by_which_nothing_could_be_shown_are_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ShadowSettings.model_validate(fields)


@pytest.mark.parametrize(("sign", "word"), [(1.0, "promote"), (-1.0, "stop")])
@pytest.mark.parametrize("rate", [0.2, 0.0001])
def test_each_test_goes_by_its_own_rate(sign: float, word: str, rate: float) -> None:
    promotions, stops = (rate, 0.01) if sign > 0 else (0.01, rate)
    settings, differences = (
        ShadowSettings(min_sessions=1, false_promotions=promotions, false_stops=stops),
        list[float](),
    )
    while (seen := weighed(differences, settings)).word == "hold" and len(differences) < 100:
        differences.append(sign)
    before = weighed(differences[:-1], settings)
    p, q = ((verdict.p_better if sign > 0 else verdict.p_worse) for verdict in (seen, before))
    assert seen.word == word
    assert p <= rate < q
    assert [verdict.lower >= 0 if sign > 0 else verdict.upper <= 0 for verdict in (before, seen)] == [False, True]
