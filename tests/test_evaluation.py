"""Evaluations: who plays how, what is counted, and with what checkpoints are compared."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marft.cli.console import evaluation_table
from marft.config.parts import EnvironmentPart
from marft.evaluation.compare import comparison_tables, gains, gains_of
from marft.evaluation.evaluate import evaluate, greedy, shuffle
from marft.evaluation.intervals import paired_difference, wilson
from marft.game.agents import Agent
from marft.game.organizations.chain import Chain
from marft.game.team import Team
from marft.rollouts import LocalRollouts
from marft.runs.folder import RunFolder
from marft.training import train
from marft.types import Episode, JointAction, Observation, Profile, Sampling, Step, Task
from tests.helpers import settings
from tests.test_unknown_success import saved


class Uneven(EnvironmentPart):
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
    run = settings("tiny", tmp_path, environment={"name": "tests.test_evaluation:Uneven"})
    with LocalRollouts(run) as rollouts:
        rollouts.publish(0)
        tasks = run.environment.tasks("test")  # type: ignore[attr-defined]
        first, episodes = evaluate(rollouts, "last", "greedy", tasks)
        again, same = evaluate(rollouts, "last", "greedy", tasks, split="validation")
        other, sampled = evaluate(rollouts, "last", "sampled", tasks)
    assert (first.tasks, first.failed, first.unknown, first.accuracy) == (4, 1, 1, 1.0)
    assert first.interval == wilson(3, 3)
    assert {episode.stream for episode in episodes} == {"test/greedy"}
    assert {episode.stream for episode in sampled} == {"test/sampled"}
    assert [one.name for one in (first, again, other)] == ["last-greedy", "last-greedy", "last-sampled"]
    said, too, otherwise = ([a.text for e in some for a in e.actions] for some in (episodes, same, sampled))
    assert said == too != otherwise  # another stream of chance makes no difference where there is no chance


def test_greedy_leaves_nothing_to_chance_nor_out() -> None:
    agent = Agent(Profile("a", "Act."), policy="a", sampling=Sampling(temperature=0.7, top_p=0.5, top_k=3))
    (made,) = greedy(Team((agent,), Chain())).agents
    assert (made.sampling.temperature, made.sampling.top_p, made.sampling.top_k) == (0.0, 1.0, 0)
    assert agent.sampling.temperature == 0.7


@pytest.mark.parametrize("count", [2, 3, 10])
def test_shuffled_messages_are_everybodys_once_and_nobodys_own(count: int) -> None:
    episodes = [Episode(Task(f"t{n}", "?"), "s", 0, (), "terminated", ()) for n in range(count)]
    for seed in range(5):
        donors = shuffle(episodes, seed)
        assert sorted(donor.task.id for donor in donors) == sorted(episode.task.id for episode in episodes)
        assert all(donor is not episode for donor, episode in zip(donors, episodes, strict=True))
    assert shuffle(episodes, 1) == shuffle(episodes, 1)
    assert count < 10 or shuffle(episodes, 1) != shuffle(episodes, 2)


def test_the_table_of_evaluations_has_every_number_in_its_own_column() -> None:
    row = {
        **saved("last", [1, 2, 3], [True, False]),
        "failed": 7,
        "interval": (0.25, 0.75),
        "reward_interval": (1.5, 2.5),
    }
    console = Console(width=300, file=io.StringIO())
    console.print(evaluation_table([row]))
    heading, cells = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert heading.split("  ")[-1].strip() == "could not be scored"
    assert cells.split() == [
        "last",
        "sampled",
        "own",
        "3",
        "50.0%",
        "25.0%",
        "to",
        "75.0%",
        "1",
        "2.000",
        "1.500",
        "to",
        "2.500",
        "7",
    ]


class TestComparing:
    def test_tasks_that_one_side_lacks_count_on_neither(self) -> None:
        base, last = (
            saved("base", [1, 2, 3], [True, False, True]),
            saved("last", [3, 2, 5, 9], [True, True, True, False]),
        )
        del base["rewards"]["t0"], base["outcomes"]["t0"]
        (row,) = gains("a", [base, last])
        assert row.reward is not None
        assert row.accuracy is not None
        assert row.reward.gain == pytest.approx(1.0)  # of t1 and t2
        assert (row.accuracy.gain, row.accuracy.gain_interval) == paired_difference([False, True], [True, True])

    def test_a_run_without_a_base_is_held_against_the_first_ones(self, tmp_path: Path) -> None:
        folders = []
        for name, evaluations in (("a", ("base", "last")), ("b", ("last",)), ("c", ())):
            folder = RunFolder.create(settings("tiny", tmp_path, name=name))
            for number, checkpoint in enumerate(evaluations):
                folder.write_evaluation(saved(checkpoint, [number, 1 + number]), f"{checkpoint}-sampled")
            folders.append(folder)
        rows = gains_of(folders[:2])
        assert [(row.run, row.reward and row.reward.base) for row in rows] == [("a", 0.5), ("b", 0.5)]
        with pytest.raises(ValueError, match=r"/c has no evaluated checkpoint; run:  marft eval"):
            comparison_tables(folders)

    def test_the_interval_of_a_difference_is_the_published_one(self) -> None:
        """Agresti and Min 2005: half a task is added to each cell; 12 gained and 4 lost of 40."""
        before = [False] * 12 + [True] * 4 + [True] * 24
        after = [True] * 12 + [False] * 4 + [True] * 24
        difference, (low, high) = paired_difference(before, after)
        centre, half = 8 / 42, 1.959964 * (17 - 8**2 / 42) ** 0.5 / 42
        assert difference == pytest.approx(0.2)
        assert (low, high) == pytest.approx((centre - half, centre + half))
