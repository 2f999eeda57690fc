"""Episodes that are played in worker processes are those that one process plays, to the last bit."""

from __future__ import annotations

import os
import pickle
import re
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from marft.agents.game import Attempt
from marft.common.errors import RunError, UserError
from marft.common.processes.remote_error import RemoteError
from marft.common.types import Episode
from marft.config import RunSettings, load_recipe, parse_recipe
from marft.config.bundled import bundled_names
from marft.config.plugins import find_plugin
from marft.evaluation.evaluate import evaluate
from marft.rollout.fork_plans import play_counterfactuals
from marft.rollout.local_runner import LocalRolloutRunner, open_rollout_runner
from marft.rollout.runner import RolloutRunner
from marft.rollout.workers.worker_runner import WorkerRolloutRunner
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.crews import crew, told
from tests.helpers import recipe, settings
from tests.marft.agents.test_tool_training import calls_first, with_tools
from tests.marft.runs.test_resume import assert_same
from tests.nights import BY_NIGHT, NIGHT

__all__ = ["calls_first"]
NOTHING_LOST = {"workers_lost": 0.0, "episodes_retried": 0.0, "tasks_excluded": 0.0}
SHORT = ("--agents.reasoner.sampling.max_new_tokens", "12", "--agents.actor.sampling.max_new_tokens", "5")


def crowd(output: Path, processes: int) -> RunSettings:
    return crew(
        output, {"name": "tests.crews:Restless"}, *SHORT, "--team.organization", "tests.crews:Crowd",
        "--rollout.max_concurrent_episodes", "3", "--engine.max_batch_size", "5", "--agents.reasoner.memory", "own",
        processes=processes,
    )  # fmt: skip


def played(run: RunSettings) -> tuple[list[Episode], list[Episode]]:
    """What attempts come to, and the forks at every one of their actions."""
    with open_rollout_runner(run) as rollouts:
        rollouts.publish(3)
        tasks = run.environment.tasks("train")[:3]  # type: ignore[attr-defined]
        attempts = [
            Attempt(task, "train/0", sample, record_critic_states=True) for task in tasks for sample in range(2)
        ]
        done: list[str] = []
        episodes = rollouts.play(attempts, on_done=lambda episode: done.append(episode.name))
        assert sorted(done) == sorted(episode.name for episode in episodes)
        assert [episode.task for episode in episodes] == [attempt.task for attempt in attempts]
        forks = play_counterfactuals(rollouts.play, attempts[:1], episodes[:1], 1, run.trained_policies)
        return episodes, forks


class TestTheSame:
    @pytest.mark.slow
    @pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="a third of a minute: make nightly")
    def test_branches_choices_and_forks_are_those_of_one_process(self, tmp_path: Path) -> None:
        here, there = played(crowd(tmp_path, 0)), played(crowd(tmp_path, 2))
        assert any(action.choice for action in here[0][0].actions)
        assert {episode.status for episode in here[0]} == {"terminated"}, here[0][0].error
        assert "terminated" in {fork.status for fork in here[1]}
        assert told(there[0]) == told(here[0])
        assert told(there[1]) == told(here[1])

    @BY_NIGHT
    @pytest.mark.slow
    @pytest.mark.usefixtures("calls_first")
    def test_uses_of_tools_are_those_of_one_process(self, tmp_path: Path) -> None:
        scarce = ("--tools.sums", f"{{name = 'tests.crews:Scarce', folder = '{tmp_path}'}}")
        here, there = (played(with_tools(tmp_path, "--rollout.workers", count, *scarce)) for count in "02")
        calls = [call for episode in [*here[0], *there[0]] for action in episode.actions for call in action.calls]
        assert [call.output for call in calls] == ["5"] * 2 * len(here[0])  # one at a time, also in two processes
        assert {episode.status for episode in [*here[0], *here[1]]} == {"terminated"}, here[0][0].error
        assert told(there[0]) == told(here[0])
        assert told(there[1]) == told(here[1])

    @pytest.mark.slow
    @pytest.mark.parametrize("algorithm", ["coma", "at-grpo"] if NIGHT else ["coma"])
    def test_a_whole_training_run_is_that_of_one_process(self, algorithm: str, tmp_path: Path) -> None:
        folders = []
        for processes in (0, 2):
            run = crew(
                tmp_path / str(processes), {"name": "tests.crews:Restless"}, "--training.steps", "2",
                "--checkpoints.every", "2", "--evaluation.every", "1", "--evaluation.validation_tasks", "3",
                "--algorithm.name", algorithm, *SHORT, processes=processes,
            )  # fmt: skip
            folders.append(RunFolder.create(run))
            assert train(run, folders[-1]).step == 2
        rows = [folder.read_metrics() for folder in folders]
        assert rows[0][0]["forks"] > 0
        assert rows[0][-1]["validation_reward"] > 0
        timeless = [[{k: v for k, v in row.items() if "second" not in k} for row in each] for each in rows]
        assert timeless[1] == [row | NOTHING_LOST for row in timeless[0]]
        assert_same(folders[1], folders[0], "step_000002")

    @BY_NIGHT
    @pytest.mark.slow
    def test_a_greedy_evaluation_with_another_team_is_that_of_one_process(self, tmp_path: Path) -> None:
        results = []
        for processes in (0, 1):
            run = settings("tiny", tmp_path, "--rollout.workers", str(processes))
            with open_rollout_runner(run) as rollouts:
                tasks = run.environment.tasks("test")[:6]  # type: ignore[attr-defined]
                results.append(evaluate(rollouts, "base", "greedy", tasks))
        assert told(results[1][1]) == told(results[0][1])
        timeless = [
            replace(one, measured={task: {k: v for k, v in of.items() if "second" not in k} for task, of in one.measured.items()})
            for one, _ in results
        ]  # fmt: skip
        assert timeless[1] == timeless[0]


class TestTravelling:
    @pytest.mark.parametrize("name", bundled_names())
    def test_every_recipe_arrives_as_it_was(self, name: str) -> None:
        run = load_recipe(name)
        assert pickle.loads(pickle.dumps(run)) == run

    def test_parts_named_by_import_path_arrive_without_what_they_have_cached(self) -> None:
        run = parse_recipe(
            recipe(
                environment={"name": "tests.plugins:Flaky", "words": 5},
                team={"organization": "tests.plugins:Reversed", "loud": True},
                rewards=[{"name": "outcome"}],
            )
        )
        object.__setattr__(run.environment, "lock", __import__("threading").Lock())
        again = pickle.loads(pickle.dumps(run))
        assert again == run
        assert (type(again.environment), again.environment.words, again.team.loud) == (type(run.environment), 5, True)
        assert not hasattr(again.environment, "lock")

    def test_errors_arrive_as_what_they_mean_to_people(self) -> None:
        with pytest.raises(ValueError, match="no environment is called 'nowhere'") as meant:
            find_plugin("environments", "nowhere")
        arrived = RemoteError.from_error(meant.value).to_error("a worker process")
        assert (type(arrived), str(arrived)) == (UserError, str(meant.value))
        assert isinstance(RemoteError.from_error(RunError("enough")).to_error("a worker process"), RunError)
        with pytest.raises(ValueError, match="invalid literal") as unforeseen:
            int("one")
        arrived = RemoteError.from_error(unforeseen.value).to_error("a worker process")
        assert re.fullmatch(r"in a worker process: ValueError: invalid .* \(test_workers.py:\d+\)", str(arrived))
        assert "Traceback" in "".join(traceback.format_exception(arrived))

    def test_both_ways_to_play_keep_to_the_protocol(self) -> None:
        for kind in (LocalRolloutRunner, WorkerRolloutRunner):
            promised = {name for name in vars(RolloutRunner) if not name.startswith("_")} - {
                "run",
                "team",
                "excluded_tasks",
            }
            assert promised <= set(dir(kind))
