"""``success = None`` is unknown: it counts in no accuracy, and rewards stand where nothing else does."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from marft.cli.console import evaluation_table
from marft.common.types import Episode, JointAction, Observation, Step, Task, Transition
from marft.config.interfaces.environment import Environment
from marft.evaluation.checkpoint_results import build_comparison_table, compare_checkpoints, compare_runs
from marft.evaluation.episode_metrics import episode_metrics
from marft.evaluation.evaluate import Evaluation, evaluate
from marft.evaluation.intervals import mean_interval
from marft.evaluation.report import write_report
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings, write_evaluation


class Wordless(Environment):
    """Pays by what the answer looks like, and says of the first ``known`` tasks alone whether they were solved."""

    known: int = 0
    count: int = 6

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}/{n}", f"Say {n}.", {"known": n < self.known}) for n in range(self.count)]

    def start(self, task: Task, seed: int) -> WordlessSession:
        return WordlessSession(task)


class WordlessSession:
    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        assert actions.answer is not None
        reward = int(actions.answer.tokens.sum()) % 7 / 6
        return Step(Observation(""), reward, terminated=True, success=reward > 0.5 if self.task.data["known"] else None)

    async def close(self) -> None: ...


def shown(*tables: Table) -> str:
    console = Console(width=300, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def evaluated(tmp_path: Path, known: int, checkpoint: str = "base") -> Evaluation:
    run = settings(
        "tiny", tmp_path, environment={"name": "tests.marft.evaluation.test_unknown_success:Wordless", "known": known}
    )
    with LocalRolloutRunner(run) as rollouts:
        rollouts.publish(0)
        return evaluate(rollouts, checkpoint, "sampled", run.environment.tasks("test"))[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("values", [[], [0.5], [0.5] * 40])
def test_values_that_do_not_differ_have_no_interval(values: list[float]) -> None:
    """One of width 0 would look certain."""
    assert mean_interval(values) is None


def test_an_evaluation_without_any_success_has_rewards_with_an_interval_and_no_accuracy(tmp_path: Path) -> None:
    result = evaluated(tmp_path, 0)
    assert (result.tasks, result.unknown, result.accuracy, result.interval, result.outcomes) == (6, 6, None, None, {})
    rewards = list(result.rewards.values())
    assert result.reward == pytest.approx(np.mean(rewards))
    assert result.reward_interval == mean_interval(rewards)
    text = shown(evaluation_table([result.as_json()]))
    assert "accuracy" not in text
    assert f"{result.reward:.3f}" in text


def test_accuracy_counts_the_tasks_whose_success_is_known_and_says_how_many_are_not(tmp_path: Path) -> None:
    result = evaluated(tmp_path, 2)
    assert (result.tasks, result.unknown, len(result.outcomes), len(result.rewards)) == (6, 4, 2, 6)
    assert result.accuracy == sum(result.outcomes.values()) / 2
    text = shown(evaluation_table([result.as_json()]))
    assert text.index("success unknown") < text.index("accuracy") < text.index("reward")
    assert json.loads(json.dumps(result.as_json()))["unknown"] == 4


def test_a_metric_that_nothing_is_known_of_is_absent() -> None:
    def episode(success: bool | None) -> Episode:
        return Episode(
            Task("t", "?"), "s", 0, (), "terminated", (Transition(Observation("o"), 1.0),), success=success
        )  # fmt: skip

    unknown = episode_metrics([episode(None), episode(None)], (), lambda _: 0)
    assert "accuracy" not in unknown
    assert unknown["success_unknown"] == 2.0
    some = episode_metrics([episode(None), episode(True), episode(False)], (), lambda _: 0)
    assert (some["accuracy"], some["success_unknown"]) == (0.5, 1.0)


def saved(checkpoint: str, rewards: Sequence[float], outcomes: Sequence[bool] = (), shuffled: bool = False) -> dict:  # type: ignore[type-arg]
    return {
        "checkpoint": checkpoint, "mode": "sampled", "shuffled_messages": shuffled, "tasks": len(rewards), "failed": 0,
        "unknown": len(rewards) - len(outcomes),
        "accuracy": sum(outcomes) / len(outcomes) if outcomes else None, "interval": (0.0, 1.0) if outcomes else None,
        "reward": sum(rewards) / len(rewards), "reward_interval": mean_interval(rewards),
        "outcomes": {f"t{n}": outcome for n, outcome in enumerate(outcomes)},
        "rewards": {f"t{n}": reward for n, reward in enumerate(rewards)}, "examples": [],
    }  # fmt: skip


def test_rewards_are_compared_task_by_task() -> None:
    (row,) = compare_checkpoints(
        "a", [saved("base", [1, 2, 3]), saved("last", [2, 4, 3]), saved("last", [0, 2, 3], shuffled=True)]
    )
    assert row.accuracy is None
    assert row.reward is not None
    assert (row.reward.base, row.reward.value, row.reward.gain, row.reward.shuffle_cost) == (
        2,
        3,
        1,
        pytest.approx(4 / 3),
    )
    assert row.reward.gain_interval == mean_interval([1, 2, 0])


def test_where_both_are_known_accuracy_comes_first_and_rewards_stand_beside_it(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    for one in (saved("base", [0, 1, 1], [False, True]), saved("last", [1, 1, 2], [True, True])):
        write_evaluation(folder, one, f"{one['checkpoint']}-sampled")
    text = shown(build_comparison_table([folder]))
    assert text.index("accuracy") < text.index("reward")
    assert "+50.0" in text
    assert "+0.667" in text
    assert "success unknown" in text
    (row,) = compare_runs([folder])
    assert row.unknown == 1


def test_where_no_success_is_known_rewards_lead_in_the_comparison_and_the_report(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    for one in (saved("base", [0.0, 1.0]), saved("last", [1.0, 3.0])):
        write_evaluation(folder, one, f"{one['checkpoint']}-sampled")
    text = shown(build_comparison_table([folder]))
    assert "accuracy" not in text
    assert "+1.500" in text
    write_report(folder)
    page = folder.report_path.read_text()
    assert "reward before" in page
    assert "accuracy before" not in page
    assert "<b>2.000</b>" in page


@pytest.mark.slow
def test_the_best_checkpoint_goes_by_validated_reward_where_no_success_is_known(tmp_path: Path) -> None:
    run = settings(
        "tiny", tmp_path, "--evaluation.every", "1", "--training.steps", "3", "--evaluation.validation_tasks", "6",
        environment={"name": "tests.marft.evaluation.test_unknown_success:Wordless"},
    )  # fmt: skip
    folder = RunFolder.create(run)
    state = train(run, folder)
    rows = folder.read_metrics()
    assert all("accuracy" not in row and "validation_accuracy" not in row for row in rows)
    measured = [row["validation_reward"] for row in rows]
    assert (state.best_score, state.best_step) == (max(measured), 1 + measured.index(max(measured)))


def test_a_step_that_was_not_validated_is_not_ranked_with_those_that_were(tmp_path: Path) -> None:
    """Its reward is on another scale."""
    run = settings(
        "tiny", tmp_path, "--evaluation.every", "2", "--training.steps", "2", "--checkpoints.every", "1",
        "--evaluation.validation_tasks", "4", environment={"name": "tests.plugins:Flaky"},
    )  # fmt: skip
    assert train(run, RunFolder.create(run)).best_step == 2
