"""What an arm came to, task by task, and how it stands to the team: worked examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from marft.common.types import Episode, Observation, Transition
from marft.evaluation.intervals import paired_difference, wilson_interval
from marft.evaluation.ratios import Ratio
from marft_lab.team_evaluation.scores import (
    VariantScores,
    action_seconds,
    build_row,
    compute_chosen_scores,
    compute_scores,
    count_tokens,
    group_by_task,
    summarize_scores,
)
from tests.benches import attempt
from tests.episodes import make_action


def timed(task: str, reward: float, success: bool | None, tokens: int, seconds: float, **changes: Any) -> Episode:
    """An attempt of two actions, each of which reads 3 tokens; the second writes the rest."""
    actions = (
        replace(make_action("a", tokens=(8,)), started=1.0, ended=1.5),
        replace(make_action("b", tokens=(8,) * (tokens - 7)), started=4.0, ended=3.5 + seconds),
    )
    transitions = (Transition(Observation("?"), reward / 4), Transition(Observation("?"), reward * 3 / 4))
    return attempt(task, success=success, actions=actions, transitions=transitions, **changes)


def outcomes(text: str) -> dict[str, Ratio]:
    """Tasks of one attempt each, of which "1" are solved; "h" is half of two attempts."""
    return {str(n): Ratio(1.0, 2.0) if one == "h" else Ratio(float(one)) for n, one in enumerate(text)}


class TestScores:
    def test_tokens_and_seconds_are_sums_over_actions(self) -> None:
        episode = timed("t", 1.0, True, tokens=12, seconds=3.0)
        assert (count_tokens(episode), action_seconds(episode)) == (12.0, 3.0)

    def test_attempts_are_sorted_by_task_without_those_that_could_not_be_scored(self) -> None:
        first, failed, other, second = (
            attempt("t"), attempt("t", status="failed"), attempt("u", status="truncated"), attempt("t", sample=1),
        )  # fmt: skip
        assert group_by_task([first, failed, other, second]) == {"t": [first, second], "u": [other]}

    def test_of_an_arm_each_attempt_is_an_answer(self) -> None:
        episodes = [
            timed("t", 1.0, True, 10, 2.0), timed("u", 4.0, None, 20, 1.0), timed("t", 2.0, False, 14, 6.0),
            timed("u", 9.0, True, 90, 9.0, status="timed_out"),
        ]  # fmt: skip
        assert compute_scores(episodes) == VariantScores(
            {"accuracy": {"t": Ratio(1.0, 2)}, "reward": {"t": Ratio(3.0, 2), "u": Ratio(4.0, 1)}},
            {"t": Ratio(24.0, 2), "u": Ratio(20.0, 1)},
            {"t": Ratio(8.0, 2), "u": Ratio(1.0, 1)},
            failed=1,
            attempts=1,
        )

    def test_of_one_that_is_chosen_all_that_were_played_are_paid(self) -> None:
        good, bad, only = (
            timed("t", 3.0, True, 10, 2.0),
            timed("t", 1.0, False, 14, 6.0),
            timed("u", 0.0, None, 20, 1.0),
        )
        assert compute_chosen_scores(
            {"t": good, "u": only}, {"t": [bad, good], "u": [only]}, failed=5, attempts=2
        ) == VariantScores(
            {"accuracy": {"t": Ratio(1.0, 1)}, "reward": {"t": Ratio(3.0, 1), "u": Ratio(0.0, 1)}},
            {"t": Ratio(24.0), "u": Ratio(20.0)},
            {"t": Ratio(8.0), "u": Ratio(1.0)},
            failed=5,
            attempts=2,
        )


class TestRows:
    def test_a_row_holds_means_over_tasks_and_what_an_answer_costs(self) -> None:
        team = compute_scores([timed("t", 1.0, False, 10, 2.0), timed("u", 2.0, False, 10, 2.0)])
        row = build_row(
            "single", "a", compute_scores([timed("t", 4.0, True, 12, 2.0), timed("u", 1.0, False, 22, 4.0)]), team
        )
        assert (row.part, row.name, row.tasks, row.failed, row.attempts) == ("single", "a", 2, 0, 1)
        assert (row.tokens, row.seconds) == (17.0, 3.0)
        assert (row.values["accuracy"].value, row.values["accuracy"].difference) == (0.5, 0.5)
        assert (row.values["reward"].value, row.values["reward"].difference) == (2.5, 1.0)

    def test_without_a_scored_attempt_there_is_no_value_and_no_price(self) -> None:
        row = build_row("swap", "b", compute_scores([attempt(status="failed")]))
        assert (row.values, row.tasks, row.failed, row.tokens, row.seconds) == ({}, 0, 1, None, None)

    def test_only_shares_have_intervals_where_all_tasks_are_alike(self) -> None:
        solved = compute_scores([attempt(task, reward=1.0, success=True) for task in "tuvw"])
        row = build_row("single", "a", solved, solved)
        accuracy, reward = row.values["accuracy"], row.values["reward"]
        assert accuracy.interval == wilson_interval(4, 4)
        assert accuracy.difference_interval == paired_difference([True] * 4, [True] * 4)[1]
        assert (reward.interval, reward.difference, reward.difference_interval) == (None, 0.0, None)


class TestValues:
    def test_the_team_itself_has_a_mean_and_its_interval(self) -> None:
        found = summarize_scores(outcomes("110"), shares=True)
        assert found is not None
        assert found.value == pytest.approx(2 / 3)
        assert (found.difference, found.difference_interval) == (None, None)
        assert found.interval is not None
        assert found.interval[0] < 0.5 < found.interval[1]
        assert found == summarize_scores(
            outcomes("110")
        )  # where tasks differ, an interval of shares is that of any mean
        assert summarize_scores({}) is None

    def test_where_all_tasks_are_solved_the_interval_is_wilsons_of_so_many_tasks(self) -> None:
        always, never = summarize_scores(outcomes("1111"), shares=True), summarize_scores(outcomes("000"), shares=True)
        assert always is not None
        assert never is not None
        assert (always.interval, never.interval) == (wilson_interval(4, 4), wilson_interval(0, 3))
        assert wilson_interval(4, 4)[0] == pytest.approx(0.5101, abs=1e-4)

    def test_a_difference_is_of_the_tasks_that_both_have(self) -> None:
        team = {"t": Ratio(0.0), "u": Ratio(1.0), "v": Ratio(0.0)}
        arm = {"u": Ratio(1.0), "v": Ratio(1.0), "w": Ratio(1.0), "x": Ratio(0.0)}
        found = summarize_scores(arm, team)
        assert found is not None
        assert (found.value, found.difference) == (0.75, 0.5)
        alone = summarize_scores(arm, {"z": Ratio(1.0)}, shares=True)
        assert alone is not None
        assert (alone.value, alone.difference, alone.difference_interval) == (0.75, None, None)

    def test_where_no_task_changes_more_than_others_the_interval_is_agresti_and_mins(self) -> None:
        worse = summarize_scores(outcomes("0000"), outcomes("1111"), shares=True)
        assert worse is not None
        assert worse.difference_interval == paired_difference([True] * 4, [False] * 4)[1]
        assert summarize_scores(outcomes("0000"), outcomes("1111")).difference_interval is None  # type: ignore[union-attr]

    def test_tasks_that_tell_are_asked_whatever_the_others_came_to(self) -> None:
        """Beside the tasks that both have, each has one that it solves half of the time."""
        team, arm = outcomes("111h"), {**outcomes("111"), "9": Ratio(1.0, 2.0)}
        found = summarize_scores(arm, team, shares=True)
        assert found is not None
        assert found.difference_interval == paired_difference([True] * 3, [True] * 3)[1]

    def test_where_some_change_more_than_others_the_interval_is_that_of_any_difference(self) -> None:
        found = summarize_scores(outcomes("10111"), outcomes("11000"), shares=True)
        assert found is not None
        assert found.difference_interval is not None
        assert found == summarize_scores(outcomes("10111"), outcomes("11000"))

    def test_tasks_that_are_solved_half_of_the_time_are_no_outcomes(self) -> None:
        for team, arm, gain in (("hhh", "111", 0.5), ("111", "hhh", -0.5), ("1h1", "1h1", 0.0)):
            found = summarize_scores(outcomes(arm), outcomes(team), shares=True)
            assert found is not None
            assert found.difference == gain
            assert found.difference_interval is None
