"""The statistics of ``marft worth``: choosing among attempts, scores with intervals, contributions; and what its parts
play, told without playing it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.config import RunSettings
from marft.evaluation.trajectories.ratio import Ratio
from marft.evaluation.worth.ablation import ablation, donors_of, reworded
from marft.evaluation.worth.arms import Arm, Player
from marft.evaluation.worth.contributions import Contribution, contributions, sampled_again, shares
from marft.evaluation.worth.expected import expected, sentence
from marft.evaluation.worth.leaving import leave_out
from marft.evaluation.worth.options import Options
from marft.evaluation.worth.scores import Row, row_of, scores_of, scores_of_chosen, value_of
from marft.evaluation.worth.teams import Alone, Unheard
from marft.evaluation.worth.voting import affordable, best, stated, voted
from marft.game.game import Attempt
from marft.game.team import Team
from marft.lineage import Lineage, Version
from marft.runs.stated import LINEAGE
from marft.types import Action, Episode, Fork, Observation, Task, Transition
from tests.benches import Told, told
from tests.episodes import episodes as any_episode
from tests.episodes import make_action
from tests.fakes import Script, ends, game
from tests.helpers import recipe, settings
from tests.number_teams import Numbers


class TestChoosing:
    TASK = Task("t", "?")

    def attempt(self, text: str, reward: float = 0.0, success: bool | None = None, **changes: Any) -> Episode:
        transitions = (Transition(Observation("?"), reward),)
        return Episode(self.TASK, "s", 0, (make_action("a", text=text),), "terminated", transitions, success, **changes)

    def test_the_majority_wins_and_a_tie_is_drawn_the_same_each_time(self) -> None:
        attempts = [self.attempt(text) for text in ("The answer is 4.", "7", "the answer is: **7**", "9")]
        assert voted(attempts, "a", stated, 0) is attempts[1]
        tied = [self.attempt(text) for text in ("1", "2", "3")]
        assert len({id(voted(tied, "a", stated, 5)) for _ in range(5)}) == 1
        assert {voted(tied, "a", stated, seed).actions[0].text for seed in range(40)} == {"1", "2", "3"}

    def test_who_gives_no_answer_has_no_vote(self) -> None:
        marked = [self.attempt(text) for text in ("I think so", "I think so", "\\boxed{5}")]
        assert voted(marked, "a", stated, 0) is marked[2]
        assert voted([self.attempt(" ")] * 2, "a", stated, 0).actions[0].text == " "

    def test_an_empty_text_has_no_vote_beside_those_that_say_something(self) -> None:
        attempts = [self.attempt(text) for text in (" ", "  ", "7")]
        assert voted(attempts, "a", stated, 0) is attempts[2]

    def test_where_nobody_gives_an_answer_any_attempt_is_drawn(self) -> None:
        attempts = [self.attempt(" ", reward) for reward in (0.0, 1.0, 2.0)]
        assert {voted(attempts, "a", stated, seed).total_reward for seed in range(40)} == {0.0, 1.0, 2.0}

    def test_the_vote_is_on_what_the_agent_said_last_and_on_nobody_elses_words(self) -> None:
        def said(*texts: str) -> Episode:
            mine = [make_action("a", text=text, call=call, index=call) for call, text in enumerate(texts)]
            return replace(self.attempt(""), actions=(*mine, make_action("b", text="0", index=len(mine))))

        attempts = [said("7", "1"), said("8", "2"), said("9", "2")]
        assert voted(attempts, "a", stated, 0) is attempts[1]

    def test_a_canonical_form_of_ones_own(self) -> None:
        attempts = [self.attempt(text) for text in ("one half", "0.5", "7")]
        half = {"one half": "1/2", "0.5": "1/2"}
        assert voted(attempts, "a", lambda task, text: half.get(text, text), 0) is attempts[0]

    def test_the_best_is_what_solved_it_before_what_earned_most(self) -> None:
        attempts = [self.attempt("x", 3.0, False), self.attempt("y", 1.0, True), self.attempt("z", 4.0, False)]
        assert best(attempts) is attempts[1]
        assert best([replace(each, success=None) for each in attempts]).total_reward == 4.0
        unknown = self.attempt("z", 9.0, None)
        assert best([unknown, attempts[1]]) is attempts[1]

    def test_a_budget_that_is_just_enough_pays_and_tasks_without_attempts_do_not(self) -> None:
        assert affordable([[10.0, 10.0], [10.0, 10.0]], 20.0) == 2
        assert affordable([[10.0, 10.0], []], 10.0) == 1
        assert affordable([[10.0], [10.0, 10.0, 10.0]], 15.0) == 2  # what one lacks costs nothing
        assert affordable([], 10.0) == 0

    @given(st.lists(st.lists(st.floats(1, 100), min_size=4, max_size=4), min_size=1, max_size=5), st.floats(0, 500))
    def test_as_many_attempts_as_the_budget_pays_for(self, costs: list[list[float]], budget: float) -> None:
        count = affordable(costs, budget)

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
            chosen = {task: best(some[:count]) for task, some in groups.items()}
            scores = scores_of_chosen(chosen, {task: some[:count] for task, some in groups.items()}, 0, count)
            values.append(Ratio.total(scores.measures["accuracy"].values()).value)
            assert scores.attempts == count
            assert Ratio.total(scores.tokens.values()).value == 5 * count  # three of the prompt and two said
        assert values == sorted(values)  # type: ignore[type-var]
        assert values[-1] == fmean(map(any, outcomes))


class TestScores:
    def test_attempts_at_a_task_are_one_of_the_interval(self) -> None:
        """40 attempts at each of two tasks say no more of other tasks than the two do."""
        clustered = value_of({"t": Ratio(40, 40), "u": Ratio(0, 40)})
        apart = value_of({str(n): Ratio(n % 2) for n in range(80)})
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
            found = value_of(arm, team, shares=True)
            assert found is not None
            low, high = found.difference_interval or (0.0, 0.0)
            covered += low <= of - 0.5 <= high
        assert covered >= 54

    def test_intervals_of_shares_end_where_shares_do_and_those_of_rewards_do_not(self) -> None:
        team = {str(n): Ratio(float(n == 0)) for n in range(8)}
        arm = {str(n): Ratio(float(n != 0)) for n in range(8)}
        share = value_of(arm, team, shares=True)
        reward = value_of({n: Ratio(3 * ratio.amount) for n, ratio in arm.items()}, team)
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
        found = value_of(halves, halves, shares=True)
        assert found is not None
        assert (found.value, found.interval, found.difference_interval) == (0.5, None, None)

    def test_tasks_that_only_one_of_them_has_are_in_no_difference(self) -> None:
        team, arm = ({str(n): Ratio(1.0) for n in range(*span)} for span in ((0, 10), (5, 20)))
        found = value_of(arm, team, shares=True)
        same = value_of({str(n): Ratio(1.0) for n in range(5, 10)}, team, shares=True)
        assert found is not None
        assert same is not None
        assert (found.difference, found.difference_interval) == (same.difference, same.difference_interval)
        assert same.difference_interval is not None

    def test_a_row_counts_tasks_failures_and_attempts_for_an_answer(self) -> None:
        attempts = [replace(TestChoosing().attempt("x", 1.0), task=Task(str(n), "?")) for n in range(4)]
        row = row_of("single", "best of 3", scores_of_chosen(
            {e.task.id: e for e in attempts}, {e.task.id: [e] * 3 for e in attempts}, failed=2, attempts=3
        ))  # fmt: skip
        assert (row.tasks, row.failed, row.attempts, row.tokens) == (4, 2, 3, 15.0)
        assert "accuracy" not in row.values

    def test_what_could_not_be_scored_is_counted_and_in_no_mean(self) -> None:
        good = TestChoosing().attempt("x", 1.0, True)
        scores = scores_of([good, replace(good, status="failed", transitions=())])
        assert (scores.failed, scores.measures["reward"]) == (1, {"t": Ratio(1.0, 1)})

    def test_failures_are_counted_and_not_what_was_scored(self) -> None:
        good = TestChoosing().attempt("x", 1.0, True)
        assert scores_of([good, good, replace(good, status="failed", transitions=())]).failed == 1

    def test_an_attempt_of_which_nobody_knows_whether_it_solved_its_task_is_in_the_reward_alone(self) -> None:
        known, unknown = (TestChoosing().attempt("x", 1.0, success) for success in (True, None))
        assert scores_of([known, unknown]).measures == {
            "accuracy": {"t": Ratio(1.0, 1)},
            "reward": {"t": Ratio(2.0, 2)},
        }
        assert scores_of([unknown]).measures["accuracy"] == {}

    def test_an_agent_is_busy_from_where_it_began(self) -> None:
        attempt = TestChoosing().attempt("x")
        later = replace(attempt, actions=tuple(replace(a, started=5.0, ended=7.0) for a in attempt.actions))
        assert scores_of([later]).seconds == {"t": Ratio(2.0, 1)}

    def test_an_arm_that_never_solves_what_the_team_always_does_is_worse_for_sure(self) -> None:
        team, arm = ({str(n): Ratio(amount) for n in range(20)} for amount in (1.0, 0.0))
        found = value_of(arm, team, shares=True)
        assert found is not None
        assert (found.value, found.difference) == (0.0, -1.0)
        assert found.interval == pytest.approx((0.0, 0.161), abs=1e-3)  # Wilson's: 1.96² / (20 + 1.96²)
        assert found.difference_interval is not None
        assert found.difference_interval[0] <= -0.9
        assert found.difference_interval[1] < -0.7

    def test_equal_rewards_are_no_shares_and_have_no_interval(self) -> None:
        attempts = [replace(TestChoosing().attempt("x", 1.0, True), task=Task(str(n), "?")) for n in range(9)]
        row = row_of("single", "a alone", scores_of(attempts))
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
        found = contributions(episode, [*forks, replace(episode, fork=Fork("another", "0/a/0"))])
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
        found = contributions(episode, forks)
        assert sum(one.own or 0.0 for one in found) == pytest.approx(found[0].variance)

    @given(any_episode())
    def test_what_comes_about_again_is_what_saw_it_and_all_later_steps(self, episode: Episode) -> None:
        for action in episode.actions:
            again = sampled_again(episode.actions, action)
            assert action.id in again
            for other in episode.actions:
                saw = any(name in again for name in other.sees)
                assert (other.id in again) == (other.id == action.id or other.step > action.step or saw)

    def test_a_fork_that_could_not_be_scored_is_no_reward_of_0(self) -> None:
        episode = replace(TestChoosing().attempt("x", 1.0), stream="train/0")
        (action,) = episode.actions
        fork = replace(TestChoosing().attempt("y", 2.0), fork=Fork(episode.name, action.id))
        forks = [fork, replace(TestChoosing().attempt("y"), fork=fork.fork, status="failed")]
        assert [one.resampled for one in contributions(episode, forks)] == [[2.0]]
        assert contributions(episode, forks[1:]) == []

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
        assert {name: sampled_again(episode.actions, x) for name, x in zip("abcde", episode.actions, strict=True)} == {
            "a": {a.id, b.id, c.id, d.id, e.id}, "b": {b.id, c.id, d.id, e.id}, "c": {c.id, d.id, e.id},
            "d": {d.id}, "e": {e.id},
        }  # fmt: skip
        spread = {role: (1.0 - again[x.id]) ** 2 / 2 for role, x in zip("abcde", episode.actions, strict=True)}
        own = {one.agent: one.own for one in contributions(episode, forks)}
        assert own == {
            "a": spread["a"] - spread["b"], "b": spread["b"] - spread["c"], "c": None, "d": spread["d"],
            "e": spread["e"],
        }  # fmt: skip
        without = [fork for fork in forks if fork.fork and fork.fork.at != b.id]
        assert contributions(episode, without)[0].own is None, "b was not sampled again"
        other = replace(TestChoosing().attempt("z", 9.0), fork=Fork("another", a.id))
        assert contributions(episode, [other, TestChoosing().attempt("z", 9.0)]) == []


class TestShares:
    @staticmethod
    def of(agent: str, reward: float, again: float, own: float | None = None) -> Contribution:
        return Contribution("0/a/0", agent, reward, [again], own)

    def test_they_are_means_over_an_agents_actions_of_all_tasks(self) -> None:
        of = self.of
        planner, actor = shares(
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
        assert shares({**acted, **others}, ["planner"]) == shares(acted, ["planner"])
        assert shares(others, ["planner"]) == []
        without = {"none": [self.of("planner", 1.0, 0.0)]}
        assert shares({**acted, **without}, ["planner"])[0].own == shares(acted, ["planner"])[0].own


def run_of(policies: Mapping[str, str], answering: str, **changes: Any) -> Any:
    """What a comparison reads of a recipe. Policies in capitals are of another model.

    Args:
        policies: by role.
    """
    names = dict.fromkeys(policies.values())
    table = {
        "agents": [SimpleNamespace(role=role, policy=name, answers=role == answering) for role, name in policies.items()],
        "policies": {name: SimpleNamespace(model="big" if name.isupper() else "small") for name in names},
        "trained_policies": list(names), "seed": 3,
        "team": SimpleNamespace(own_words=False, answering_role=lambda roles: ""),
    }  # fmt: skip
    return SimpleNamespace(**{**table, **changes})


PROGRAM = SimpleNamespace(own_words=True, answering_role=lambda roles: "")


def bench_of(run: Any, episodes: Sequence[Episode], paraphrase: Any = "", **weights: str) -> Told:
    """A bench on which all that is played comes to the same episodes."""
    tasks = list(dict.fromkeys(episode.task.id for episode in episodes))
    return told(run, lambda _: episodes, tasks, weights=weights, options=Options(paraphrase=paraphrase))


def arms_of(made: Told, rows: Sequence[Row]) -> dict[str, Arm]:
    """What was played for rows, by their names."""
    assert made.player.played[0] is made.bench.arm
    return dict(zip([row.name for row in rows], made.player.played[1:], strict=True))


def notes_of(made: Told) -> list[str]:
    return [text for _, text in made.notes]


def chain(task: str, roles: str, sample: int = 0, reward: float = 1.0) -> Episode:
    """Each agent hears all before it."""
    actions: list[Action] = []
    for place, role in enumerate(roles):
        text = f"{role} of {task} {sample}"
        sees = tuple(action.id for action in actions)
        actions.append(make_action(role, index=place, sees=sees, text=text, task=task, sample=sample))
    transitions = (Transition(Observation("?"), reward),)
    return Episode(Task(task, "?"), "s", sample, tuple(actions), "terminated", transitions, reward > 0)


class TestExpected:
    """How much is played, by hand."""

    THREE = run_of({"planner": "p", "reasoner": "r", "actor": "a"}, "actor")
    TWO = run_of({"reasoner": "r", "actor": "a"}, "actor")
    ONE = run_of({"actor": "a"}, "actor")

    @pytest.mark.parametrize(
        ("part", "more"),
        [
            ("single", {"single actor alone": 50, "single actor alone, untuned": 50}),
            ("swap", {"swap": 30 * 5, "cross-play": 30 * 3**2 * 3}),
            ("leave-out", {"leave-out": 30 * (2 + 3)}),
            ("ablation", {"ablation": 30 * (2 + 2 + 2)}),
            ("counterfactual", {"counterfactual": 10 * 3 * 4}),
        ],
    )
    def test_three_agents_at_ten_tasks_with_three_attempts_each(self, part: str, more: dict[str, int]) -> None:
        options = Options(only=[part], samples=3, attempts=5, resamples=4)
        assert expected(self.THREE, options, dict.fromkeys("pra", "step_1"), 3, 10) == {"team": 30, **more}

    def test_two_agents_at_ten_tasks_with_seven_attempts_each_beside_another_run(self) -> None:
        options = Options(samples=7, attempts=5, resamples=4, single=Path("other"), paraphrase="")
        assert expected(self.TWO, options, dict.fromkeys("ra", "step_1"), 2, 10) == {
            "team": 70, "single actor alone": 70, "single actor alone, untuned": 70, "single other": 70, "swap": 70,
            "cross-play": 280, "leave-out": 70 * (1 + 2), "ablation": 140, "counterfactual": 80,
        }  # fmt: skip
        few = replace(options, samples=1)
        assert expected(self.TWO, few, dict.fromkeys("ra", "step_1"), 1, 10)["single other"] == 50

    def test_checkpoints_that_are_one_are_not_crossed_and_policies_of_two_models_not_swapped(self) -> None:
        swapped = Options(only=["swap"])
        assert expected(self.TWO, swapped, dict.fromkeys("ra", "step_1"), 1, 10) == {"team": 10, "swap": 10}
        run = run_of({"a": "a", "b": "b", "c": "C"}, "c")
        assert expected(run, swapped, dict.fromkeys("abC", "step_1"), 1, 10) == {"team": 10, "swap": 10}

    def test_one_agent_and_a_program_have_no_messages_and_are_not_asked_alone(self) -> None:
        options = Options(resamples=4)
        assert expected(self.ONE, options, {"a": "step_1"}, 3, 10) == {
            "team": 10, "leave-out": 10, "counterfactual": 40
        }  # fmt: skip
        program = run_of({"reasoner": "r", "actor": "a"}, "actor", team=PROGRAM)
        assert expected(program, options, dict.fromkeys("ra", "step_1"), 1, 10) == {
            "team": 10, "swap": 10, "leave-out": 20, "counterfactual": 80
        }  # fmt: skip

    def test_it_is_said_in_a_sentence(self) -> None:
        assert sentence({"team": 1000, "swap": 500}, 1000) == (
            "about 1,500 episodes of 1,000 held-out tasks (team 1,000, swap 500); single agents': at most"
        )


class TestAblation:
    def test_each_sample_of_a_task_gets_the_messages_of_another_task_in_a_cycle_of_its_own(self) -> None:
        tasks = "uvwxyz"
        episodes = [chain(task, "ab", sample) for task in tasks for sample in (0, 1)]
        donors = donors_of(episodes, 3)
        for sample in (0, 1):
            mine = {task: donors[task, sample] for task in tasks}
            assert all(donor.task.id != task and donor.sample == sample for task, donor in mine.items())
            assert {donor.task.id for donor in mine.values()} == {*tasks}
        cycles = [{task: donors_of(episodes, seed)[task, sample].task.id for task in tasks} for seed, sample in (
            (3, 1), (4, 0), (3, 0)
        )]  # fmt: skip
        assert cycles[0] == cycles[1] != cycles[2]

    def test_messages_are_silenced_exchanged_and_paraphrased_for_each_that_is_heard(self) -> None:
        episodes = [chain(task, "abc") for task in "tu"]
        made = bench_of(run_of({"a": "a", "b": "b", "c": "c"}, "c"), episodes, str.upper)
        rows, shown = ablation(made.bench)
        arms = arms_of(made, rows)
        ids = [action.id for action in episodes[0].actions]
        assert [*arms] == ["silence", "shuffled", "a shuffled", "b shuffled", "a paraphrased", "b paraphrased"]
        assert arms["silence"] == replace(made.bench.arm, unheard=("a", "b", "c"))
        swapped = {
            ("t", 0): {ids[0]: "a of u 0", ids[1]: "b of u 0"},
            ("u", 0): {ids[0]: "a of t 0", ids[1]: "b of t 0"},
        }
        assert arms["shuffled"].messages == swapped
        for role, action in (("a", ids[0]), ("b", ids[1])):
            assert arms[f"{role} shuffled"].messages == {key: {action: some[action]} for key, some in swapped.items()}
            assert arms[f"{role} paraphrased"].messages == {
                (task, 0): {action: f"{role} of {task} 0".upper()} for task in "tu"
            }
        assert shown == [(f"{role} of {task} 0", f"{role} of {task} 0".upper()) for role in "ab" for task in "tu"]
        assert made.notes == []
        assert made.expected == {"ablation": 12}

    def test_of_one_that_is_heard_all_messages_are_its_own_and_one_task_has_no_other(self) -> None:
        run = run_of({"a": "a", "b": "b"}, "b")
        two = bench_of(run, [chain(task, "ab") for task in "tu"])
        assert [*arms_of(two, ablation(two.bench)[0])] == ["silence", "shuffled"]
        one = bench_of(run, [chain("t", "ab")])
        assert [*arms_of(one, ablation(one.bench)[0])] == ["silence"]
        assert "messages of another task need two tasks" in notes_of(one)

    def test_a_program_and_agents_that_hear_nobody_have_no_messages_to_change(self) -> None:
        policies = {"a": "a", "b": "b"}
        program = bench_of(run_of(policies, "b", team=PROGRAM), [chain("t", "ab")])
        assert ablation(program.bench) == ([], [])
        assert notes_of(program) == ["the team is a program, which passes messages on itself: they cannot be changed"]
        apart = replace(chain("t", ""), actions=(make_action("a"), make_action("b", index=1)))
        alone = bench_of(run_of(policies, "b"), [apart])
        assert ablation(alone.bench) == ([], [])
        assert notes_of(alone) == ["nobody reads anything of anybody else: there are no messages to change"]

    def test_what_has_no_other_words_stays(self) -> None:
        episode = chain("t", "ab")
        words = {("a", "b of t 0"): "no", ("b", "b of t 0"): "B"}
        assert reworded([episode], "a", words) == {("t", 0): {}}
        assert reworded([episode], "b", words) == {("t", 0): {episode.actions[1].id: "B"}}


def test_each_agent_is_left_out_that_others_read_and_each_policy_untuned_that_was_trained() -> None:
    """A planner, whom all hear; one who is never asked; a critic, who hears and is not heard; a writer, who answers."""
    planner = make_action("planner")
    critic, writer = (make_action(role, index=n, sees=(planner.id,)) for n, role in ((1, "critic"), (2, "writer")))
    last = make_action("planner", index=3, call=1, sees=(planner.id, writer.id))
    episode = replace(chain("t", ""), actions=(planner, critic, writer, last))
    policies = {"planner": "p", "idle": "i", "critic": "p", "writer": "w"}
    weights = {"p": "step_1", "i": "step_1", "w": "base"}
    made = bench_of(run_of(policies, "writer"), [episode], **weights)
    assert arms_of(made, leave_out(made.bench)) == {
        "planner unheard": replace(made.bench.arm, unheard=("planner",)),
        "writer unheard": replace(made.bench.arm, unheard=("writer",)),
        "planner and critic untuned": replace(made.bench.arm, weights={**weights, "p": "base"}),
    }
    assert notes_of(made) == [
        "idle was never asked: nothing hangs on it",
        "critic acts, and nobody reads it; what the organization makes of it stays",
        "writer unheard: it answers all the same, or has a vote",
        "planner and critic share the policy p: untuned together",
    ]
    other = bench_of(run_of(policies, "writer"), [episode], p="base", i="base", w="step_1")
    assert [*arms_of(other, leave_out(other.bench))] == ["planner unheard", "writer unheard", "writer untuned"]
    assert notes_of(other) == notes_of(made)[:3], "it shares its policy with nobody"
    program = bench_of(run_of(policies, "writer", team=PROGRAM), [episode], **weights)
    assert [*arms_of(program, leave_out(program.bench))] == ["planner and critic untuned"]
    assert notes_of(program)[:2] == [
        "idle was never asked: nothing hangs on it",
        "the team is a program, which passes messages on itself: nobody can be unheard",
    ]


class TestArms:
    def test_an_arm_is_a_team_with_what_is_changed_in_it(self) -> None:
        team = game(Script([ends()]), "a", "b").team
        assert Arm({}).team(team) is team
        seated = Arm({}, seats={"a": "b", "b": "a"}).team(team)
        assert [agent.policy for agent in seated.agents] == ["b", "a"]
        assert (seated.channel, seated.organization) == (team.channel, team.organization)
        unheard = Arm({}, unheard=("a",)).team(team)
        assert (unheard.channel, unheard.agents) == (Unheard(team.channel, ("a",)), team.agents)
        alone = Arm({}, alone="b").team(team)
        assert (alone.organization, alone.agents, alone.channel) == (Alone("b"), team.agents, team.channel)

    def test_attempts_go_on_from_the_first_with_their_messages(self) -> None:
        said = {("t", 3): {"x": "one"}, ("u", 2): {"y": "two"}}
        attempts = Arm({}, messages=said, samples=2, first=2).attempts([Task("t", "?"), Task("u", "?")])
        assert [(one.task.id, one.stream, one.sample, one.messages) for one in attempts] == [
            ("t", "test/worth", 2, {}), ("t", "test/worth", 3, {"x": "one"}),
            ("u", "test/worth", 2, {"y": "two"}), ("u", "test/worth", 3, {}),
        ]  # fmt: skip

    def test_what_makes_it_another_arm_is_the_same_in_any_order(self) -> None:
        tasks = [Task("t", "?")]
        messages = {("t", 0): {"y": "2", "x": "1"}}
        one = Arm({}, {"a": "b", "b": "a", "c": "c"}, unheard=("b", "a"), messages=messages)
        assert one.told(tasks) == {
            "seats": {"a": "b", "b": "a"}, "alone": "", "unheard": ["a", "b"], "samples": 1, "first": 0,
            "messages": [["t", 0, [("x", "1"), ("y", "2")]]],
        }  # fmt: skip
        assert Arm({}, samples=2, first=1, alone="a").told(tasks) == {
            "seats": {}, "alone": "a", "unheard": [], "samples": 2, "first": 1, "messages": []
        }  # fmt: skip


class Elsewhere(Numbers):
    """An environment of one's own, with a path among its settings."""

    data: Path


class StubRollouts:
    """Plays attempts as agents who say nothing of their own, and keeps what it is asked for."""

    def __init__(self, run: RunSettings) -> None:
        self.run, self.team = run, game(Script([ends()]), "reasoner", "actor").team
        self.models: Any = SimpleNamespace(
            digests=lambda: {"base": "1"}, reset_policy=lambda name: self.done.append(f"reset {name}"),
            load_policy=lambda name, folder: self.done.append(f"load {name} of {folder.parents[1].name}"),
        )  # fmt: skip
        self.done: list[str] = []
        self.told: list[dict[str, str]] = []
        self.published: list[int] = []
        self.played: list[list[tuple[str, int]]] = []
        self.streams: list[str] = []
        self.teams: list[Team] = []

    def instruct(self, versions: Sequence[Version]) -> None:
        self.told.append({version.role: version.instructions for version in versions})

    def publish(self, version: int) -> None:
        self.published.append(version)

    def play(self, attempts: Sequence[Attempt], team: Team, on_done: Callable[[Episode], None]) -> list[Episode]:
        self.played.append([(one.task.id, one.sample) for one in attempts])
        self.streams += [one.stream for one in attempts]
        self.teams.append(team)
        found = [replace(chain(one.task.id, "", one.sample), stream=one.stream) for one in attempts]
        for episode in found:
            on_done(episode)
        return found


RUN = settings()
BASE = {"reasoner": "base", "actor": "base"}
TASKS = [Task(name, "?") for name in "tuvwx"]


class TestPlayer:
    """What is played, with which weights, and what is only read."""

    @pytest.fixture(autouse=True)
    def folders(self, tmp_path: Path) -> None:
        """A checkpoint that comes before ``base`` by name, and one that is like it but for the actor's weights."""
        self.kept = tmp_path / "worth" / "arms"
        self.paths: dict[str, Path | None] = {"base": None}
        for name, words in (("a1", "Think."), ("a2", "Reflect.")):
            self.paths[name] = path = tmp_path / name
            for policy in BASE:
                (path / "policies" / policy).mkdir(parents=True)
            files = {"policies/reasoner/w": "same", "policies/actor/w": name, "policies/actor/v": "same", "log": name}
            self.state(path, files, {"reasoner": words, "actor": f"{words} Act."})
        self.advanced = 0

    @staticmethod
    def state(path: Path, files: Mapping[str, str], told: Mapping[str, str]) -> None:
        profiles = LINEAGE.dump_python(Lineage.begun(told), mode="json")
        (path / "state.json").write_text(json.dumps({"files": files, "profiles": profiles}), encoding="utf-8")

    def advance(self, *_: object) -> None:
        self.advanced += 1

    def player(
        self, live: int = 64, run: RunSettings = RUN, tasks: Sequence[Task] = TASKS, **changes: Any
    ) -> tuple[Player, StubRollouts]:
        rollout = run.rollout.model_copy(update={"max_live_episodes": live})
        rollouts = StubRollouts(run.model_copy(update={"rollout": rollout}))
        player = Player(rollouts, self.paths, tasks, self.kept, self.advance, **changes)  # type: ignore[arg-type]
        return player, rollouts

    @pytest.mark.parametrize(("live", "sizes"), [(5, [4, 4, 2]), (10, [10]), (1, [2] * 5)])
    def test_as_many_tasks_are_played_together_as_episodes_may_be_live(self, live: int, sizes: Sequence[int]) -> None:
        player, rollouts = self.player(live)
        found = player.play(Arm(BASE, samples=2))
        assert [(one.task.id, one.sample) for one in found] == [(task, sample) for task in "tuvwx" for sample in (0, 1)]
        assert [len(played) for played in rollouts.played] == sizes
        assert [one for played in rollouts.played for one in played] == [(one.task.id, one.sample) for one in found]
        assert self.advanced == 10
        assert len([*self.kept.iterdir()]) == len(sizes)
        assert {len(path.stem) for path in self.kept.iterdir()} == {32}

    def test_what_was_played_is_read_and_played_anew_once_where_that_is_asked_for(self) -> None:
        arm = Arm(BASE)
        names = [episode.name for episode in self.player()[0].play(arm)]
        player, rollouts = self.player()
        assert [episode.name for episode in player.play(arm)] == names
        assert (rollouts.played, rollouts.done, self.advanced) == ([], [], 10)
        again, rollouts = self.player(again=True)
        assert [[episode.name for episode in again.play(arm)] for _ in range(2)] == [names] * 2
        assert (len(rollouts.played), self.advanced) == (1, 20)
        for path in self.kept.iterdir():
            path.write_bytes(b"PAR1")
        player, rollouts = self.player()
        assert [[episode.name for episode in player.play(arm)] for _ in range(2)] == [names] * 2
        assert len(rollouts.played) == 1, "what was damaged is whole again"

    def test_weights_are_put_in_place_where_others_are_and_agents_told_what_belongs_to_them(self) -> None:
        player, rollouts = self.player(tasks=TASKS[:1])
        reset = ["reset reasoner", "reset actor"]
        player.play(Arm(BASE))
        assert rollouts.done == reset
        player.play(Arm(BASE, alone="actor"))
        assert rollouts.done == reset, "they are in place"
        assert rollouts.teams[-1].organization == Alone("actor")
        mixed = {"reasoner": "a2", "actor": "a1"}
        player.play(Arm(mixed))
        assert rollouts.done[2:] == ["reset reasoner", "load reasoner of a2", "reset actor", "load actor of a1"]
        player.play(Arm({**mixed, "actor": "base"}))
        assert rollouts.done[6:] == ["reset reasoner", "load reasoner of a2", "reset actor"]
        assert rollouts.published == [1, 2, 3]
        assert rollouts.told == [{}, {"reasoner": "Reflect.", "actor": "Think. Act."}, {"reasoner": "Reflect."}]

    def test_an_agent_that_never_learned_is_told_what_it_was_at_the_last_checkpoint_that_plays(self) -> None:
        table = recipe()
        frozen = {"reasoner": {"model": "base"}, "actor": {"model": "base", "train": "frozen"}}
        run = settings(policies=frozen, agents=table["agents"])
        player, rollouts = self.player(run=run)
        player.play(Arm({"reasoner": "a1"}))
        assert rollouts.told == [{"reasoner": "Think.", "actor": "Think. Act."}]
        both = {"reasoner": {"model": "base"}, "other": {"model": "base"}, "actor": frozen["actor"]}
        third = {**table["agents"][0], "role": "other", "policy": "other"}
        player, rollouts = self.player(run=settings(policies=both, agents=[third, *table["agents"]]))
        for path in filter(None, self.paths.values()):
            (path / "policies" / "other").mkdir()
        player.play(Arm({"other": "base", "reasoner": "a1"}))
        assert rollouts.told == [{"reasoner": "Think.", "actor": "Think. Act."}]
        player.play(Arm({"other": "a2", "reasoner": "a1"}))
        assert rollouts.told[1:] == [{"reasoner": "Think.", "actor": "Reflect. Act."}]

    def test_where_nothing_was_trained_agents_are_told_nothing_and_are_in_place_once(self) -> None:
        frozen = {name: {"model": "base", "train": "frozen"} for name in BASE}
        run = settings(policies=frozen)
        player, rollouts = self.player(run=run)
        player.play(Arm({}))
        player.play(Arm({}, alone="actor"))
        assert (rollouts.done, rollouts.told, rollouts.published) == ([], [{}], [1])

    def played(self, arm: Arm, **changes: Any) -> bool:
        """Whether a player that comes later plays an arm of which the one that was begun with is kept."""
        player, rollouts = self.player(**changes)
        player.play(arm)
        return bool(rollouts.played)

    def test_an_arm_is_another_where_anything_is_that_its_episodes_depend_on(self) -> None:
        mixed = {"reasoner": "a1", "actor": "a1"}
        arm = Arm(mixed, seats={"reasoner": "actor", "actor": "reasoner"})
        turned = Arm(dict(reversed([*mixed.items()])), seats=dict(reversed([*arm.seats.items()])))
        assert self.played(arm)
        assert not self.played(arm)
        assert not self.played(turned), "in another order it is the same"
        assert not self.played(arm, run=RUN.model_copy(update={"name": "another"}))
        assert self.played(arm, run=RUN.model_copy(update={"seed": 7}))
        assert self.played(replace(arm, weights={**mixed, "actor": "a2"}))
        assert self.played(replace(arm, weights={**mixed, "actor": "base"}))
        assert self.played(arm, tasks=[replace(TASKS[0], prompt="!")])
        path = self.paths["a1"]
        assert path is not None
        files = {"log": "other", "policies/actor/v": "same", "policies/actor/w": "a1", "policies/reasoner/w": "same"}
        self.state(path, files, {"reasoner": "Think.", "actor": "Think. Act."})
        assert not self.played(arm), "its policies' files are the same"
        self.state(path, files, {"reasoner": "Think.", "actor": "Now act."})
        assert self.played(arm)
        self.state(path, {**files, "policies/actor/w": "new"}, {"reasoner": "Think.", "actor": "Now act."})
        assert self.played(arm)

    def test_settings_that_json_has_no_word_for_tell_arms_apart_too(self) -> None:
        first, second = (
            settings(environment={"name": "tests.test_worth_statistics:Elsewhere", "data": data}) for data in "xy"
        )
        assert [self.played(Arm(BASE), run=run) for run in (first, first, second)] == [True, False, True]

    def test_other_models_are_played_anew(self) -> None:
        arm = Arm(BASE)
        assert self.played(arm)
        rollouts = StubRollouts(RUN)
        rollouts.models.digests = lambda: {"base": "2"}
        Player(rollouts, self.paths, TASKS, self.kept, self.advance).play(arm)  # type: ignore[arg-type]
        assert rollouts.played

    def test_actions_of_the_tasks_that_have_an_episode_are_sampled_again(self) -> None:
        player, rollouts = self.player(live=12)
        arm = Arm(BASE, samples=3, messages={("t", 0): {"x": "y"}})
        episodes = [
            replace(one, actions=tuple(replace(action, policy={"r": "reasoner", "a": "actor"}[action.agent]) for action in one.actions))
            for one in (chain(task, "ra") for task in "tvwx")
        ]  # fmt: skip
        found = player.forks(arm, episodes, 3)
        ids = [action.id for action in episodes[0].actions]
        streams = [f"test/worth/fork/{at}/{number}" for at in ids for number in range(3)]
        assert [len(played) for played in rollouts.played] == [6, 12, 6], "two tasks are live at a time"
        assert rollouts.streams == streams * 4
        assert [(one.task.id, one.sample) for one in found] == [(task, 0) for task in "tvwx" for _ in range(6)]
        assert self.advanced == 24
        player.forks(arm, episodes, 3)
        assert len(rollouts.played) == 3
        player.forks(arm, episodes, 2)
        assert len(rollouts.played) > 3

    def test_a_team_of_its_own_is_played_once_with_the_weights_that_are_named(self) -> None:
        player, rollouts = self.player()
        team = replace(rollouts.team, organization=Alone("actor"))
        attempts = [Attempt(task, "elsewhere") for task in TASKS[:2]]
        weights = {"reasoner": "a1", "actor": "base"}
        for _ in range(2):
            found = player.with_team(weights, attempts, team, ["x"])
            assert [episode.name for episode in found] == ["elsewhere t #0", "elsewhere u #0"]
        assert rollouts.teams == [team]
        assert rollouts.done == ["reset reasoner", "load reasoner of a1", "reset actor"]
        assert self.advanced == 4
        player.with_team(weights, attempts, team, ["y"])
        assert len(rollouts.teams) == 2
