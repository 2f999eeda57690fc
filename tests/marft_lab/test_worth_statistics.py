"""The statistics of ``marft worth``: choosing among attempts, scores with intervals, contributions."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.types import Episode, Fork, Observation, Task, Transition
from marft.evaluation.ratios import Ratio
from marft_lab.team_evaluation.counterfactual import (
    ActionContribution,
    agent_contributions,
    compute_contributions,
    resampled_actions,
)
from marft_lab.team_evaluation.scores import build_row, compute_chosen_scores, compute_scores, summarize_scores
from marft_lab.team_evaluation.single_agent import best_attempt, majority_vote, max_affordable, normalize_answer
from tests.episodes import episodes as any_episode
from tests.episodes import make_action


class TestChoosing:
    TASK = Task("t", "?")

    def attempt(self, text: str, reward: float = 0.0, success: bool | None = None, **changes: Any) -> Episode:
        transitions = (Transition(Observation("?"), reward),)
        return Episode(self.TASK, "s", 0, (make_action("a", text=text),), "terminated", transitions, success, **changes)

    def test_the_majority_wins_and_a_tie_is_drawn_the_same_each_time(self) -> None:
        attempts = [self.attempt(text) for text in ("The answer is 4.", "7", "the answer is: **7**", "9")]
        assert majority_vote(attempts, "a", normalize_answer, 0) is attempts[1]
        tied = [self.attempt(text) for text in ("1", "2", "3")]
        assert len({id(majority_vote(tied, "a", normalize_answer, 5)) for _ in range(5)}) == 1
        assert {majority_vote(tied, "a", normalize_answer, seed).actions[0].text for seed in range(40)} == {
            "1",
            "2",
            "3",
        }

    def test_who_gives_no_answer_has_no_vote(self) -> None:
        marked = [self.attempt(text) for text in ("I think so", "I think so", "\\boxed{5}")]
        assert majority_vote(marked, "a", normalize_answer, 0) is marked[2]
        assert majority_vote([self.attempt(" ")] * 2, "a", normalize_answer, 0).actions[0].text == " "

    def test_an_empty_text_has_no_vote_beside_those_that_say_something(self) -> None:
        attempts = [self.attempt(text) for text in (" ", "  ", "7")]
        assert majority_vote(attempts, "a", normalize_answer, 0) is attempts[2]

    def test_where_nobody_gives_an_answer_any_attempt_is_drawn(self) -> None:
        attempts = [self.attempt(" ", reward) for reward in (0.0, 1.0, 2.0)]
        assert {majority_vote(attempts, "a", normalize_answer, seed).total_reward for seed in range(40)} == {
            0.0,
            1.0,
            2.0,
        }

    def test_the_vote_is_on_what_the_agent_said_last_and_on_nobody_elses_words(self) -> None:
        def said(*texts: str) -> Episode:
            mine = [make_action("a", text=text, call=call, index=call) for call, text in enumerate(texts)]
            return replace(self.attempt(""), actions=(*mine, make_action("b", text="0", index=len(mine))))

        attempts = [said("7", "1"), said("8", "2"), said("9", "2")]
        assert majority_vote(attempts, "a", normalize_answer, 0) is attempts[1]

    def test_a_canonical_form_of_ones_own(self) -> None:
        attempts = [self.attempt(text) for text in ("one half", "0.5", "7")]
        half = {"one half": "1/2", "0.5": "1/2"}
        assert majority_vote(attempts, "a", lambda task, text: half.get(text, text), 0) is attempts[0]

    def test_the_best_is_what_solved_it_before_what_earned_most(self) -> None:
        attempts = [self.attempt("x", 3.0, False), self.attempt("y", 1.0, True), self.attempt("z", 4.0, False)]
        assert best_attempt(attempts) is attempts[1]
        assert best_attempt([replace(each, success=None) for each in attempts]).total_reward == 4.0
        unknown = self.attempt("z", 9.0, None)
        assert best_attempt([unknown, attempts[1]]) is attempts[1]

    def test_a_budget_that_is_just_enough_pays_and_tasks_without_attempts_do_not(self) -> None:
        assert max_affordable([[10.0, 10.0], [10.0, 10.0]], 20.0) == 2
        assert max_affordable([[10.0, 10.0], []], 10.0) == 1
        assert max_affordable([[10.0], [10.0, 10.0, 10.0]], 15.0) == 2  # what one lacks costs nothing
        assert max_affordable([], 10.0) == 0

    @given(st.lists(st.lists(st.floats(1, 100), min_size=4, max_size=4), min_size=1, max_size=5), st.floats(0, 500))
    def test_as_many_attempts_as_the_budget_pays_for(self, costs: list[list[float]], budget: float) -> None:
        count = max_affordable(costs, budget)

        def price(number: int) -> float:
            return fmean(sum(each[:number]) for each in costs)

        assert count == 0 or price(count) <= budget * (1 + 1e-9)
        assert count == 4 or price(count + 1) >= budget * (1 - 1e-9)

    @given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=8))
    def test_the_best_of_more_is_never_worse(self, outcomes: list[list[bool]]) -> None:
        groups = {
            str(n): [replace(self.attempt("x", float(o), o), task=Task(str(n), "?")) for o in some]
            for n, some in enumerate(outcomes)
        }
        values = []
        for count in (1, 2, 3):
            chosen = {task: best_attempt(some[:count]) for task, some in groups.items()}
            scores = compute_chosen_scores(chosen, {task: some[:count] for task, some in groups.items()}, 0, count)
            values.append(Ratio.total(scores.measures["accuracy"].values()).value)
            assert scores.attempts == count
            assert Ratio.total(scores.tokens.values()).value == 5 * count  # three of the prompt and two said
        assert values == sorted(values)  # type: ignore[type-var]
        assert values[-1] == fmean(map(any, outcomes))


class TestScores:
    def test_attempts_at_a_task_are_one_of_the_interval(self) -> None:
        """40 attempts at each of two tasks say no more of other tasks than the two do."""
        clustered = summarize_scores({"t": Ratio(40, 40), "u": Ratio(0, 40)})
        apart = summarize_scores({str(n): Ratio(n % 2) for n in range(80)})
        assert clustered is not None
        assert apart is not None
        assert clustered.value == apart.value == 0.5
        widths = [high - low for low, high in filter(None, (clustered.interval, apart.interval))]
        assert widths[0] > 3 * widths[1]

    @pytest.mark.parametrize("of", [0.2, 0.7])
    def test_intervals_of_differences_cover_the_truth(self, of: float) -> None:
        drawn, covered = np.random.default_rng(3), 0
        for _ in range(60):
            team = {str(n): Ratio(float(drawn.random() < 0.5)) for n in range(50)}
            arm = {str(n): Ratio(float(drawn.random() < of)) for n in range(50)}
            found = summarize_scores(arm, team, shares=True)
            assert found is not None
            low, high = found.difference_interval or (0.0, 0.0)
            covered += low <= of - 0.5 <= high
        assert covered >= 54

    def test_intervals_of_shares_end_where_shares_do_and_those_of_rewards_do_not(self) -> None:
        team = {str(n): Ratio(float(n == 0)) for n in range(8)}
        arm = {str(n): Ratio(float(n != 0)) for n in range(8)}
        share = summarize_scores(arm, team, shares=True)
        reward = summarize_scores({n: Ratio(3 * ratio.numerator) for n, ratio in arm.items()}, team)
        assert share is not None
        assert reward is not None
        assert share.interval is not None
        assert share.difference_interval is not None
        assert 0 < share.interval[0] < share.value < share.interval[1] < 1
        assert -1 < share.difference_interval[0] < share.difference_interval[1] < 1
        assert [each is not None and each[1] > 3 for each in (reward.interval, reward.difference_interval)] == [
            True,
            True,
        ]

    def test_tasks_that_are_all_solved_half_of_the_time_tell_nothing_of_others(self) -> None:
        halves = {str(n): Ratio(1.0, 2) for n in range(9)}
        found = summarize_scores(halves, halves, shares=True)
        assert found is not None
        assert (found.value, found.interval, found.difference_interval) == (0.5, None, None)

    def test_tasks_that_only_one_of_them_has_are_in_no_difference(self) -> None:
        team, arm = ({str(n): Ratio(1.0) for n in range(*span)} for span in ((0, 10), (5, 20)))
        found = summarize_scores(arm, team, shares=True)
        same = summarize_scores({str(n): Ratio(1.0) for n in range(5, 10)}, team, shares=True)
        assert found is not None
        assert same is not None
        assert (found.difference, found.difference_interval) == (same.difference, same.difference_interval)
        assert same.difference_interval is not None

    def test_a_row_counts_tasks_failures_and_attempts_for_an_answer(self) -> None:
        attempts = [replace(TestChoosing().attempt("x", 1.0), task=Task(str(n), "?")) for n in range(4)]
        row = build_row("single", "best of 3", compute_chosen_scores(
            {e.task.id: e for e in attempts}, {e.task.id: [e] * 3 for e in attempts}, failed=2, attempts=3
        ))  # fmt: skip
        assert (row.tasks, row.failed, row.attempts, row.tokens) == (4, 2, 3, 15.0)
        assert "accuracy" not in row.values

    def test_what_could_not_be_scored_is_counted_and_in_no_mean(self) -> None:
        good = TestChoosing().attempt("x", 1.0, True)
        scores = compute_scores([good, replace(good, status="failed", transitions=())])
        assert (scores.failed, scores.measures["reward"]) == (1, {"t": Ratio(1.0, 1)})

    def test_failures_are_counted_and_not_what_was_scored(self) -> None:
        good = TestChoosing().attempt("x", 1.0, True)
        assert compute_scores([good, good, replace(good, status="failed", transitions=())]).failed == 1

    def test_an_attempt_of_which_nobody_knows_whether_it_solved_its_task_is_in_the_reward_alone(self) -> None:
        known, unknown = (TestChoosing().attempt("x", 1.0, success) for success in (True, None))
        assert compute_scores([known, unknown]).measures == {
            "accuracy": {"t": Ratio(1.0, 1)},
            "reward": {"t": Ratio(2.0, 2)},
        }
        assert compute_scores([unknown]).measures["accuracy"] == {}

    def test_an_agent_is_busy_from_where_it_began(self) -> None:
        attempt = TestChoosing().attempt("x")
        later = replace(attempt, actions=tuple(replace(a, started=5.0, ended=7.0) for a in attempt.actions))
        assert compute_scores([later]).seconds == {"t": Ratio(2.0, 1)}

    def test_an_arm_that_never_solves_what_the_team_always_does_is_worse_for_sure(self) -> None:
        team, arm = ({str(n): Ratio(amount) for n in range(20)} for amount in (1.0, 0.0))
        found = summarize_scores(arm, team, shares=True)
        assert found is not None
        assert (found.value, found.difference) == (0.0, -1.0)
        assert found.interval == pytest.approx((0.0, 0.161), abs=1e-3)  # Wilson's: 1.96² / (20 + 1.96²)
        assert found.difference_interval is not None
        assert found.difference_interval[0] <= -0.9
        assert found.difference_interval[1] < -0.7

    def test_equal_rewards_are_no_shares_and_have_no_interval(self) -> None:
        attempts = [replace(TestChoosing().attempt("x", 1.0, True), task=Task(str(n), "?")) for n in range(9)]
        row = build_row("single", "a alone", compute_scores(attempts))
        assert row.values["reward"].interval is None
        assert row.values["accuracy"].interval is not None


class TestContributions:
    @given(any_episode(), st.data())
    def test_they_are_what_the_formulas_say(self, episode: Episode, data: st.DataObject) -> None:
        forks, rewards = [], {}
        for action in episode.actions:
            rewards[action.id] = data.draw(st.lists(st.floats(-5, 5), min_size=1, max_size=3))
            for reward in rewards[action.id]:
                fork = Fork(episode.name, action.id)
                forks.append(replace(episode, transitions=(Transition(Observation(""), reward),), fork=fork))
        found = compute_contributions(episode, [*forks, replace(episode, fork=Fork("another", "0/a/0"))])
        assert [one.action for one in found] == [action.id for action in episode.actions]
        for one in found:
            again = [episode.total_reward, *rewards[one.action]]
            mean = sum(again) / len(again)
            assert one.contribution == pytest.approx(episode.total_reward - fmean(rewards[one.action]))
            assert one.variance == pytest.approx(sum((r - mean) ** 2 for r in again) / (len(again) - 1))

    @given(any_episode(chain=True))
    def test_in_a_chain_own_parts_add_up_to_the_variance_at_its_beginning(self, episode: Episode) -> None:
        drawn = np.random.default_rng(0)
        forks = [
            replace(
                episode,
                transitions=(Transition(Observation(""), float(drawn.normal())),),
                fork=Fork(episode.name, action.id),
            )
            for action in episode.actions
            for _ in range(3)
        ]
        found = compute_contributions(episode, forks)
        assert sum(one.own or 0.0 for one in found) == pytest.approx(found[0].variance)

    @given(any_episode())
    def test_what_comes_about_again_is_what_saw_it_and_all_later_steps(self, episode: Episode) -> None:
        for action in episode.actions:
            again = resampled_actions(episode.actions, action)
            assert action.id in again
            for other in episode.actions:
                saw = any(name in again for name in other.sees)
                assert (other.id in again) == (other.id == action.id or other.step > action.step or saw)

    def test_a_fork_that_could_not_be_scored_is_no_reward_of_0(self) -> None:
        episode = replace(TestChoosing().attempt("x", 1.0), stream="train/0")
        (action,) = episode.actions
        fork = replace(TestChoosing().attempt("y", 2.0), fork=Fork(episode.name, action.id))
        forks = [fork, replace(TestChoosing().attempt("y"), fork=fork.fork, status="failed")]
        assert [one.resampled for one in compute_contributions(episode, forks)] == [[2.0]]
        assert compute_contributions(episode, forks[1:]) == []

    def test_of_what_an_action_is_worth_its_own_part_is_without_what_came_after_it(self) -> None:
        """a; b, who hears a; c, who hears b; then the next step, whose two actions hear nobody."""
        a = make_action("a")
        b = make_action("b", index=1, sees=(a.id,))
        c = make_action("c", index=2, sees=(b.id,))
        d, e = (make_action(role, step=1, index=place) for place, role in ((3, "d"), (4, "e")))
        episode = replace(TestChoosing().attempt("x", 1.0), stream="train/0", actions=(a, b, c, d, e))
        again = {a.id: 4.0, b.id: 3.0, c.id: 2.0, d.id: 1.5, e.id: 1.0}
        forks = [
            replace(TestChoosing().attempt("y", reward), fork=Fork(episode.name, name))
            for name, reward in again.items()
        ]
        assert {name: resampled_actions(episode.actions, x) for name, x in zip("abcde", episode.actions, strict=True)} == {
            "a": {a.id, b.id, c.id, d.id, e.id}, "b": {b.id, c.id, d.id, e.id}, "c": {c.id, d.id, e.id},
            "d": {d.id}, "e": {e.id},
        }  # fmt: skip
        spread = {role: (1.0 - again[x.id]) ** 2 / 2 for role, x in zip("abcde", episode.actions, strict=True)}
        own = {one.agent: one.own for one in compute_contributions(episode, forks)}
        assert own == {
            "a": spread["a"] - spread["b"], "b": spread["b"] - spread["c"], "c": None, "d": spread["d"],
            "e": spread["e"],
        }  # fmt: skip
        without = [fork for fork in forks if fork.fork and fork.fork.at != b.id]
        assert compute_contributions(episode, without)[0].own is None, "b was not sampled again"
        other = replace(TestChoosing().attempt("z", 9.0), fork=Fork("another", a.id))
        assert compute_contributions(episode, [other, TestChoosing().attempt("z", 9.0)]) == []


class TestShares:
    @staticmethod
    def of(agent: str, reward: float, again: float, own: float | None = None) -> ActionContribution:
        return ActionContribution("0/a/0", agent, reward, [again], own)

    def test_they_are_means_over_an_agents_actions_of_all_tasks(self) -> None:
        of = self.of
        planner, actor = agent_contributions(
            {
                "t": [of("planner", 1.0, 0.0, 0.5), of("planner", 1.0, 1.0), of("actor", 1.0, -3.0)],
                "u": [of("planner", 0.0, 2.0, 0.2), of("actor", 0.0, 0.0)],
            },
            ["planner", "actor"],
        )
        assert (planner.agent, planner.actions, actor.agent, actor.actions) == ("planner", 3, "actor", 2)
        assert planner.contribution.value == pytest.approx((1 + 0 - 2) / 3)
        assert planner.variance.value == pytest.approx((0.5 + 0 + 2) / 3)
        assert planner.own is not None
        assert planner.own.value == pytest.approx((0.5 + 0.2) / 2)
        assert (actor.contribution.value, actor.variance.value, actor.own) == (2.0, 4.0, None)

    def test_tasks_in_which_an_agent_did_nothing_say_nothing_of_it(self) -> None:
        acted = {str(n): [self.of("planner", float(n), 0.0, float(n))] for n in range(5)}
        others = {f"other {n}": [self.of("actor", 0.0, 0.0)] for n in range(20)}
        assert agent_contributions({**acted, **others}, ["planner"]) == agent_contributions(acted, ["planner"])
        assert agent_contributions(others, ["planner"]) == []
        without = {"none": [self.of("planner", 1.0, 0.0)]}
        assert (
            agent_contributions({**acted, **without}, ["planner"])[0].own
            == agent_contributions(acted, ["planner"])[0].own
        )
