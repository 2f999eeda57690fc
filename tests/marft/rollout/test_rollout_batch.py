"""Attempts of a step, their helper calls and streams, and which groups of episodes vary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from marft.common.types import Episode, Fork, Observation, Transition
from marft.config import RunSettings
from marft.rewards.groups import normalize_by_group
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import (
    RolloutBatch,
    collect_rollouts,
    first_attempts,
    group_by_draw,
    rewards_vary,
    sample_attempts,
)
from marft.runs.state import State
from tests.episodes import make_action
from tests.helpers import helped, settings
from tests.marft.rollout.test_collection import SMALL, TASKS, Rollouts, of, paid

LIMITS = {
    0: [("t0", [1, 1, 0, 0]), ("t1", [0, 1, 1, 0])],
    1: [("t0", [0, 1, 0, 0]), ("t1", [1, 0, 0, 0])],
    2: [("t0", [0, 0, 0, 0]), ("t1", [0, 0, 0, 0])],
}
LATER_PASS = [("t1", [0, 0, 1, 1]), ("t0", [1, 0, 0, 1])]


def call_limits(run: RunSettings, step: int, draws: int = 0) -> list[tuple[str, list[int]]]:
    attempts = sample_attempts(run, TASKS[:2], step, draws, 2)
    return [
        (attempts[first].task.id, [a.max_helper_calls for a in attempts[first : first + 4]]) for first in (0, 4)
    ]  # fmt: skip


def forked(at: int, *rewards: float, steps: int = 0, **own: float) -> Episode:
    """Episode of one actor that earns ``rewards``, forked at step ``at``; ``steps``: actions, by default one each."""
    actions = tuple(make_action("actor", step=step) for step in range(steps or len(rewards)))
    transitions = tuple(paid(reward, **own) for reward in rewards)
    return Episode(
        TASKS[0], "s", 0, actions, "paused", transitions, fork=Fork("root", make_action("actor", step=at).id)
    )


class TestHelperCalls:
    def test_which_attempts_may_call_is_the_same_in_every_version(self, tmp_path: Path) -> None:
        """It depends on the step, the pass over the tasks and the task, and nothing else."""
        run = helped(tmp_path, **{"consulting.budget": 0.5})
        assert {step: call_limits(run, step) for step in (0, 1, 2)} == LIMITS
        assert call_limits(run, 0, draws=2) == LATER_PASS  # these attempts have streams of their own

    def test_without_helpers_no_attempt_may_call(self) -> None:
        assert {a.max_helper_calls for a in sample_attempts(of("grpo"), TASKS, 0, 0, 2)} == {0}


class TestRepeats:
    def test_a_repetition_plays_the_same_tasks_with_streams_of_its_own(self) -> None:
        run = of("grpo")

        def streams(repeat: int) -> list[tuple[str, str, int]]:
            rollouts = cast(LocalRolloutRunner, Rollouts(run, lambda _: paid(1.0)))
            batch = collect_rollouts(rollouts, TASKS, State(step=3), lambda _: None, repeat=repeat)
            return [(episode.task.id, episode.stream, episode.sample) for episode in batch.episodes]

        assert {stream for _, stream, _ in streams(0)} == {"train/3"}
        assert {stream for _, stream, _ in streams(2)} == {"train/3/repeat-2"}
        assert [(task, sample) for task, _, sample in streams(2)] == [(task, sample) for task, _, sample in streams(0)]

    def test_a_batch_takes_in_the_episodes_of_its_repetitions_and_keeps_its_draws(self) -> None:
        a, b, c, d = (Episode(task, "s", 0, (), "failed", ()) for task in TASKS[:4])
        first = RolloutBatch([a], [a, b], [a, b], 5, {"forks": 1.0}, next_draw=7)
        second = RolloutBatch([c], [d], [c, d], 9, {"forks": 2.0}, next_draw=11)
        whole = first.extend([second, second])
        assert whole.episodes == [a, c, c]
        assert whole.training_episodes == [a, b, d, d]
        assert whole.recorded == [a, b, c, d, c, d]
        assert (whole.tasks_drawn, whole.next_draw, whole.metrics) == (5, 7, {"forks": 1.0})

    def test_of_each_task_the_first_attempt_stands_for_the_others(self) -> None:
        episodes = [Episode(task, "s", sample, (), "failed", ()) for task in TASKS[:2] for sample in (0, 1)]
        assert first_attempts(episodes) == [episodes[0], episodes[2]]


class TestVaryingRewards:
    @pytest.mark.parametrize(("group_by", "varies"), [("state", False), ("agent", True), ("turn", True)])
    def test_candidates_are_compared_within_the_groups_of_the_credit(self, group_by: str, varies: bool) -> None:
        """Both candidates at each state earn the same, but at the second state twice as much as at the first."""
        run = of("at-grpo", credit={"name": "tree", "group_by": group_by}, dynamic_sampling=1)
        assert rewards_vary([forked(0, 1.0), forked(0, 1.0), forked(1, 0.0, 2.0), forked(1, 0.0, 2.0)], run) is varies

    def test_a_candidate_is_judged_by_its_step_and_a_whole_attempt_by_all_steps(self) -> None:
        """The candidates earn the same at their step, and different amounts after it."""
        group = [forked(0, 1.0, 0.0), forked(0, 1.0, 5.0)]
        assert not rewards_vary(group, of("at-grpo", dynamic_sampling=1))
        assert rewards_vary(group, of("dapo", dynamic_sampling=1))
        mixed = [group[0], replace(group[1], fork=None)]
        assert rewards_vary(mixed, of("at-grpo", dynamic_sampling=1))

    def test_a_branch_that_ended_before_its_candidate_earned_nothing(self) -> None:
        run = of("at-grpo", dynamic_sampling=1)
        assert not rewards_vary([forked(1, 0.0, 0.0), forked(1, 0.0)], run)
        assert rewards_vary([forked(1, 0.0, 1.0), forked(1, 0.0)], run)

    def test_a_group_of_which_nothing_was_scored_does_not_vary(self) -> None:
        assert not rewards_vary([], of("dapo", dynamic_sampling=1))

    def test_a_grader_without_a_grade_at_a_step_gave_nothing_there(self) -> None:
        run = settings("tiny", "runs", **SMALL, algorithm={"name": "dapo", "dynamic_sampling": 1},
                       rewards=[{"name": "outcome"}, {"name": "step_cost"}])  # fmt: skip
        graded, ungraded = {"outcome": 0.0, "step_cost": 0.0}, {"step_cost": -1.0, "step_cost/actor": -1.0}
        group = [
            Episode(TASKS[0], "s", n, (), "terminated", (Transition(Observation("o"), 0.0, own, terms=terms),))
            for n, (terms, own) in enumerate([(graded, {}), (ungraded, {"actor": -1.0})])
        ]
        assert not rewards_vary(group, run)


def test_attempts_of_a_later_pass_are_a_group_of_their_own() -> None:
    """The stream of the later pass begins with that of the first; forks have the streams of their attempts."""
    streams = ["train/0", "train/0", "train/0/10", "train/0/10", "train/0/2"]
    episodes = [Episode(TASKS[0], stream, n, (), "failed", ()) for n, stream in enumerate(streams)]
    attempts = [cast(Any, episode) for episode in episodes]  # only their streams are read
    assert group_by_draw(episodes, attempts) == [episodes[:2], episodes[2:4], episodes[4:]]


def test_group_metrics_count_sizes() -> None:
    rewards, keys = np.array([1.0, 0.0, 1.0, 1.0, 5.0]), ["a", "a", "a", "b", "b"]
    _, metrics = normalize_by_group(rewards, keys)
    assert (metrics["group_size"], metrics["group_size_min"]) == (2.5, 2.0)
    _, metrics = normalize_by_group(np.zeros(0), [])
    assert (metrics["group_size"], metrics["group_size_min"], metrics["groups"]) == (0.0, 0.0, 0.0)
