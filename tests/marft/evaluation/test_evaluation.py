"""Evaluations: who plays how, what is counted, and with what checkpoints are compared."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marft.agents.agents import Agent
from marft.agents.game import Attempt
from marft.agents.organizations import Chain
from marft.agents.team import Team
from marft.cli.console import evaluation_table
from marft.common.types import AgentProfile, Episode, JointAction, Observation, SamplingParams, Step, Task, Transition
from marft.common.usage import Usage
from marft.config.interfaces.environment import Environment
from marft.envs.tasks import digest_tasks
from marft.evaluation.checkpoint_results import build_comparison_table, compare_checkpoints, compare_runs
from marft.evaluation.evaluate import (
    aggregate_episodes,
    build_attempts,
    evaluate,
    evaluation_name,
    parse_modes,
    shuffle_episodes,
    team_for_mode,
)
from marft.evaluation.intervals import mean_interval, paired_difference, wilson_interval
from marft.evaluation.ratios import Ratio, clustered_interval
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.episodes import make_action
from tests.helpers import settings, write_evaluation
from tests.marft.evaluation.test_unknown_success import saved


class Uneven(Environment):
    """Fails in the first task, says nothing of the success of the second, and solves the others."""

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}/{n}", f"Say {n}.") for n in range(5)]

    def start(self, task: Task, seed: int) -> Any:
        return UnevenSession(int(task.id[-1]))


class UnevenSession:
    def __init__(self, number: int) -> None:
        self.number = number

    async def reset(self) -> Observation:
        return Observation("?")

    async def step(self, actions: JointAction) -> Step:
        if self.number == 0:
            raise KeyError("broken")
        return Step(Observation(""), 1.0, terminated=True, success=True if self.number > 1 else None)

    async def close(self) -> None: ...


@pytest.mark.slow
def test_validating_between_steps_changes_nothing_of_what_is_learned(tmp_path: Path) -> None:
    """Validation draws from streams of its own, and from tasks of its own."""
    rows = {}
    for every in ("0", "1"):
        run = settings("tiny", tmp_path, "--name", f"every-{every}", "--evaluation.every", every)
        train(run, folder := RunFolder.create(run))
        rows[every] = folder.read_metrics()
    assert all("validation_accuracy" in row for row in rows["1"])
    for without, beside in zip(rows["0"], rows["1"], strict=True):
        assert without == {name: beside[name] for name in without} | {n: without[n] for n in without if "second" in n}


def test_what_cannot_be_scored_is_counted_and_in_no_rate(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, environment={"name": "tests.marft.evaluation.test_evaluation:Uneven"})
    with LocalRolloutRunner(run) as rollouts:
        rollouts.publish(0)
        tasks = run.environment.tasks("test")  # type: ignore[attr-defined]
        first, episodes = evaluate(rollouts, "last", "greedy", tasks)
        again, same = evaluate(rollouts, "last", "greedy", tasks, split="validation")
        other, sampled = evaluate(rollouts, "last", "sampled", tasks)
    assert (first.tasks, first.failed, first.unknown, first.accuracy) == (4, 1, 1, 1.0)
    assert first.interval == wilson_interval(3, 3)
    assert {episode.stream for episode in episodes} == {"test/greedy"}
    assert {episode.stream for episode in sampled} == {"test/sampled"}
    assert [one.name for one in (first, again, other)] == ["last-greedy", "last-greedy", "last-sampled"]
    said, too, otherwise = ([a.text for e in some for a in e.actions] for some in (episodes, same, sampled))
    assert said == too != otherwise  # another stream of chance makes no difference where there is no chance


def played(task: str, success: bool | None = None, reward: float = 0.0, **about: Any) -> Episode:
    """One attempt by two agents, of which the second asks a remote model."""
    first = make_action("a", tokens=(1, 2, 3), text=f"{task}: {success}")
    second = replace(make_action("b", index=1, tokens=(1,)), usage=Usage(prompt_tokens=7, completion_tokens=2))
    steps = (Transition(Observation(f"{task}?"), reward),)
    data = {"level": 1, "kind": task[-1]}
    made = Episode(Task(task, f"{task}?", data), "test/sampled", 0, (first, second), "terminated", steps, success)
    return replace(made, **about)


def test_an_evaluation_of_several_attempts_adds_up_by_hand() -> None:
    """Of t0 one of two attempts solves it, of t1 both do; nothing is known of t2; one attempt at t3 has no score."""
    episodes = [
        played("t0", True, 1.0), played("t0", False), played("t1", True, 1.0), played("t1", True, 3.0), played("t2"),
        played("t2", None, 1.0), played("t3", True, 4.0), played("t3", True, 9.0, status="failed"),
    ]  # fmt: skip
    found = aggregate_episodes(("a", "b"), "last", "sampled", episodes, split="validation", attempts=2)
    assert (found.checkpoint, found.mode, found.split, found.shuffled_messages) == (
        "last",
        "sampled",
        "validation",
        False,
    )
    assert (found.tasks, found.failed, found.unknown, found.attempts) == (4, 1, 1, 2)
    assert (found.accuracy, found.interval) == clustered_interval([Ratio(1, 2), Ratio(2, 2), Ratio(1, 1)], 2)
    assert found.accuracy == 4 / 5
    assert found.outcomes == {"t0": 0.5, "t1": 1.0, "t3": 1.0}
    assert found.rewards == {"t0": 0.5, "t1": 2.0, "t2": 0.5, "t3": 4.0}
    assert found.reward == pytest.approx(10 / 7)
    assert found.reward_interval == mean_interval([0.5, 2.0, 0.5, 4.0])
    assert found.measured["t0"]["accuracy"] == (1.0, 2.0)
    assert found.measured["t1"]["reward"] == (4.0, 2.0)
    assert "accuracy" not in found.measured["t2"]
    assert {name: ratio for name, ratio in found.measured["t0"].items() if "@" in name or "^" in name} == {
        "pass@2": (1.0, 1.0), "pass^2": (0.0, 1.0), "avg@2": (0.5, 1.0),
    }  # fmt: skip
    assert found.metrics["accuracy"] == 4 / 5
    assert found.metrics["reward"] == pytest.approx(10 / 7)
    assert {name: share for name, (share, _) in found.passes.items()} == {
        "pass@2": 1.0,
        "pass^2": 0.5,
        "avg@2": 2.5 / 3,
    }
    assert found.passes["avg@2"] == clustered_interval([Ratio(0.5), Ratio(1.0), Ratio(1.0)], 2)
    assert found.fields == {"level": dict.fromkeys(("t0", "t1", "t2", "t3"), "1")}
    assert [(one["task"], one["success"]) for one in found.examples] == [
        ("t0", True), ("t0", False), ("t1", True), ("t1", True), ("t2", None), ("t2", None),
    ]  # fmt: skip
    assert list(found.prompts) == ["t0", "t1", "t2", "t3"]
    assert [len(digest) for digest in found.prompts.values()] == [16] * 4
    assert found.prompts["t0"] == digest_tasks([episodes[0].task])[:16]
    assert found.agents["a"] == {"action_length": 3.0, "truncation_rate": 0.0}
    assert found.agents["b"]["action_length"] == 1.0
    assert (found.agents["b"]["remote_prompt_tokens"], found.agents["b"]["remote_completion_tokens"]) == (7, 2)
    assert "own_reward" not in found.agents["a"]
    assert json.loads(json.dumps(found.as_json()))["outcomes"] == dict(found.outcomes)


def test_of_one_attempt_each_a_task_is_solved_or_not_and_of_none_nothing_is_known() -> None:
    found = aggregate_episodes(
        ("a",), "base", "greedy", [played("t0", True, 1.0), played("t1", False, 0.5)], shuffled=True
    )
    assert (found.attempts, found.passes, found.split, found.shuffled_messages) == (1, {}, "test", True)
    assert list(map(repr, found.outcomes.values())) == ["True", "False"]
    nothing = aggregate_episodes(("a",), "base", "greedy", [played("t0", True, status="failed")])
    assert (nothing.tasks, nothing.failed, nothing.unknown) == (0, 1, 0)
    assert (nothing.accuracy, nothing.interval, nothing.reward, nothing.reward_interval) == (None, None, None, None)
    assert not aggregate_episodes(("a",), "base", "greedy", [played("t0")]).shuffled_messages


def test_printed_an_evaluation_says_how_it_went_and_not_what_was_played() -> None:
    shown = repr(aggregate_episodes(("a",), "base", "greedy", [played("t0", True)]))
    assert re.findall(r"(\w+)=", shown) == [
        "checkpoint", "mode", "split", "shuffled_messages", "tasks", "failed", "unknown", "accuracy", "interval",
        "reward", "reward_interval", "attempts", "passes", "scenarios", "reorganized",
    ]  # fmt: skip


def test_an_evaluation_is_named_after_all_that_tells_it_from_others() -> None:
    found = aggregate_episodes(("a",), "base", "greedy", [played("t0", True)], shuffled=True)
    assert found.name == "base-greedy-shuffled"
    more = replace(found, scenarios={"name": "smoke"}, reorganized={"name": "pair"})
    assert more.name == "base-greedy-shuffled-on-smoke-as-pair"
    assert evaluation_name("last", "sampled", shuffled=False, team="pair") == "last-sampled-as-pair"
    assert evaluation_name("last", "sampled", shuffled=False, scenarios="smoke") == "last-sampled-on-smoke"


def test_modes_are_known_by_name_and_each_is_played_once() -> None:
    assert parse_modes(["sampled", "greedy", "sampled"], "--mode") == ("sampled", "greedy")
    with pytest.raises(ValueError, match=r"^--mode: 'greed' is none of greedy, sampled$"):
        parse_modes(["greedy", "greed"], "--mode")


def test_attempts_stand_task_by_task_and_each_hears_the_messages_of_its_own_donor() -> None:
    tasks = [Task("x", "?"), Task("y", "?")]
    own = build_attempts(tasks, 2, "greedy", "validation")
    assert [(one.task.id, one.sample, one.stream) for one in own] == [
        ("x", 0, "validation/greedy"), ("x", 1, "validation/greedy"),
        ("y", 0, "validation/greedy"), ("y", 1, "validation/greedy"),
    ]  # fmt: skip
    assert [one.messages for one in own] == [{}] * 4
    donors = [played(f"d{n}") for n in range(2)]
    heard = build_attempts(tasks, 1, "sampled", messages_from=donors)
    assert [one.stream for one in heard] == ["test/sampled"] * 2
    assert [one.messages["0/a/0"] for one in heard] == ["d0: None", "d1: None"]
    assert set(heard[0].messages) == {"0/a/0", "0/b/0"}


class Telling:
    """Stands in for rollouts: every task is solved, and what was asked for is kept."""

    def __init__(self) -> None:
        sampling = SamplingParams(temperature=0.7)
        self.team = Team((Agent(AgentProfile("a", "Act."), policy="a", sampling=sampling),), Chain())
        self.asked: list[tuple[list[Attempt], Team]] = []

    def play(self, attempts: list[Attempt], team: Team, on_done: Callable[[Episode], None]) -> list[Episode]:
        self.asked.append((attempts, team))
        episodes = [played(one.task.id, True, 1.0, stream=one.stream) for one in attempts]
        for episode in episodes:
            on_done(episode)
        return episodes


def test_every_task_is_played_once_in_the_mode_and_split_that_were_asked_for() -> None:
    rollouts: Any = Telling()
    tasks, done = [Task("x", "?"), Task("y", "?")], list[Episode]()
    donors = [played("d0"), played("d1")]
    found, episodes = evaluate(
        rollouts,
        "last",
        "greedy",
        tasks,
        split="validation",
        messages_from=donors,
        on_done=done.append,
    )
    assert (found.checkpoint, found.mode, found.split, found.shuffled_messages) == (
        "last",
        "greedy",
        "validation",
        True,
    )
    assert (found.tasks, found.attempts, list(found.agents)) == (2, 1, ["a"])
    assert [episode.stream for episode in episodes] == ["validation/greedy"] * 2
    assert done == episodes
    ((attempts, team),) = rollouts.asked
    assert [(one.task.id, one.sample, one.messages["0/a/0"]) for one in attempts] == [
        ("x", 0, "d0: None"), ("y", 0, "d1: None"),
    ]  # fmt: skip
    assert team.agents[0].sampling.temperature == 0.0
    own, _ = evaluate(rollouts, "base", "sampled", tasks)
    assert (own.checkpoint, own.mode, own.split, own.shuffled_messages) == ("base", "sampled", "test", False)
    assert rollouts.asked[1][1] is rollouts.team


def test_a_seed_gives_the_same_donors_in_every_version() -> None:
    episodes = [played(f"t{n}") for n in range(5)]
    assert [donor.task.id for donor in shuffle_episodes(episodes, 0)] == ["t4", "t0", "t1", "t2", "t3"]


def test_greedy_leaves_nothing_to_chance_nor_out() -> None:
    agent = Agent(AgentProfile("a", "Act."), policy="a", sampling=SamplingParams(temperature=0.7, top_p=0.5, top_k=3))
    (made,) = team_for_mode("greedy", Team((agent,), Chain())).agents
    assert (made.sampling.temperature, made.sampling.top_p, made.sampling.top_k) == (0.0, 1.0, 0)
    assert agent.sampling.temperature == 0.7


@pytest.mark.parametrize("count", [2, 3, 10])
def test_shuffled_messages_are_everybodys_once_and_nobodys_own(count: int) -> None:
    episodes = [Episode(Task(f"t{n}", "?"), "s", 0, (), "terminated", ()) for n in range(count)]
    for seed in range(5):
        donors = shuffle_episodes(episodes, seed)
        assert sorted(donor.task.id for donor in donors) == sorted(episode.task.id for episode in episodes)
        assert all(donor is not episode for donor, episode in zip(donors, episodes, strict=True))
    assert shuffle_episodes(episodes, 1) == shuffle_episodes(episodes, 1)
    assert count < 10 or shuffle_episodes(episodes, 1) != shuffle_episodes(episodes, 2)


def test_the_table_of_evaluations_has_every_number_in_its_own_row() -> None:
    row = {
        **saved("last", [1, 2, 3], [True, False]),
        "failed": 7,
        "interval": (0.25, 0.75),
        "reward_interval": (1.5, 2.5),
    }
    console = Console(width=300, file=io.StringIO())
    console.print(evaluation_table([row]))
    rows = [re.split(" {2,}", line.strip()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert rows == [
        ["last"], ["sampled"], ["tasks", "3"], ["could not be scored", "7"], ["success unknown", "1"],
        ["accuracy", "50.0%"], ["95 % interval", "25.0% to 75.0%"], ["reward", "2.000"],
        ["95 % interval", "1.500 to 2.500"],
    ]  # fmt: skip


class TestComparing:
    def test_tasks_that_one_side_lacks_count_on_neither(self) -> None:
        base, last = (
            saved("base", [1, 2, 3], [True, False, True]),
            saved("last", [3, 2, 5, 9], [True, True, True, False]),
        )
        del base["rewards"]["t0"], base["outcomes"]["t0"]
        (row,) = compare_checkpoints("a", [base, last])
        assert row.reward is not None
        assert row.accuracy is not None
        assert row.reward.gain == pytest.approx(1.0)  # of t1 and t2
        assert (row.accuracy.gain, row.accuracy.gain_interval) == paired_difference([False, True], [True, True])

    def test_a_run_without_a_base_is_held_against_the_first_ones(self, tmp_path: Path) -> None:
        folders = []
        for name, evaluations in (("a", ("base", "last")), ("b", ("last",)), ("c", ())):
            folder = RunFolder.create(settings("tiny", tmp_path, name=name))
            for number, checkpoint in enumerate(evaluations):
                write_evaluation(folder, saved(checkpoint, [number, 1 + number]), f"{checkpoint}-sampled")
            folders.append(folder)
        rows = compare_runs(folders[:2])
        assert [(row.run, row.reward and row.reward.base) for row in rows] == [("a", 0.5), ("b", 0.5)]
        with pytest.raises(ValueError, match=r"/c has no evaluated checkpoint; run:  marft eval"):
            build_comparison_table(folders)

    def test_the_interval_of_a_difference_is_the_published_one(self) -> None:
        """Agresti and Min 2005: half a task is added to each cell; 12 gained and 4 lost of 40."""
        before = [False] * 12 + [True] * 4 + [True] * 24
        after = [True] * 12 + [False] * 4 + [True] * 24
        difference, (low, high) = paired_difference(before, after)
        centre, half = 8 / 42, 1.959964 * (17 - 8**2 / 42) ** 0.5 / 42
        assert difference == pytest.approx(0.2)
        assert (low, high) == pytest.approx((centre - half, centre + half))
