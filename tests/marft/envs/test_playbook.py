"""The playbook's composite reward: its terms, the environment that declares what they need, and the recipe."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.types import Episode, JointAction, Observation, Step, StepInfo, Task, Transition
from marft.config.load import load_recipe
from marft.envs.splits import assign_split
from marft.envs.tasks import read_tasks
from marft.examples.orders import LINE, Orders, OrderSession
from marft.rewards.terms import Progress, TrajectoryScore
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.episodes import make_action
from tests.nights import BY_NIGHT

SHARES = st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=6)


def episode(shares: list[float | None], paid: list[float] | None = None) -> Episode:
    steps = tuple(
        Transition(Observation("o"), reward, declared=StepInfo(progress=share))
        for share, reward in zip(shares, paid or [0.25] * len(shares), strict=True)
    )
    return Episode(Task("t", "o"), "train/0", 0, (), "terminated", steps)


def gains(term: Progress, of: Episode) -> list[float]:
    return [step.team for step in term.score(of)]


@given(SHARES)
def test_progress_is_what_a_step_adds_to_the_best_that_was_declared(shares: list[float | None]) -> None:
    given_ones = [share for share in shares if share is not None]
    if not given_ones:
        return
    earned = gains(Progress(), episode(shares))
    assert sum(earned) == pytest.approx(max(given_ones))
    assert min(earned) >= 0.0
    assert all(not gain for gain, share in zip(earned, shares, strict=True) if share is None)  # nothing is guessed


def test_progress_is_of_rewards_where_none_is_declared() -> None:
    assert gains(Progress(), episode([None] * 4, [0.2, 0.5, 0.1, 0.75])) == pytest.approx([0.2, 0.3, 0.0, 0.25])
    assert gains(Progress(), episode([0.0, None, None, None], [0.2, 0.5, 0.1, 0.75])) == [0.0] * 4


@given(SHARES)
def test_the_trajectory_score_is_the_mean_of_what_was_declared(shares: list[float | None]) -> None:
    stated = [share for share in shares if share is not None]
    if not stated:
        with pytest.raises(ValueError, match="does not declare how near its goal"):
            TrajectoryScore().score(episode(shares))
        return
    earned = [step.team for step in TrajectoryScore().score(episode(shares))]
    assert earned[-1] == pytest.approx(sum(stated) / len(stated))
    assert not any(earned[:-1])


def test_orders_of_splits_share_no_line_and_declare_what_metrics_need() -> None:
    orders = Orders(train_tasks=50, held_out_tasks=50)
    for split in ("train", "validation", "test"):
        tasks = orders.tasks(split)  # type: ignore[arg-type]
        assert {assign_split(LINE.format(*line)) for task in tasks for line in task.data["lines"]} == {split}
        assert all(task.data["fewest_steps"] == 2 for task in tasks)
    assert [task.prompt for task in orders.tasks("test")] == [task.prompt for task in Orders().tasks("test")[:50]]


async def steps(session: OrderSession, *said: str) -> list[Step]:
    await session.reset()
    return [
        await session.step(JointAction(answer=replace(make_action("a"), text=text) if text else None)) for text in said
    ]


def test_an_order_goes_on_when_a_line_is_right_and_ends_after_twice_its_lines() -> None:
    lines = ((100, 200), (300, 400))
    good = asyncio.run(steps(OrderSession(lines), r"\boxed{20,000}", "It is 5.", r"The answer is \boxed{120000}."))
    assert [step.info["progress"] for step in good] == [0.5, 0.5, 1.0]
    assert [(step.terminated, step.success) for step in good] == [(False, False), (False, False), (True, True)]
    assert sum(step.reward for step in good) == 1.0
    bad = asyncio.run(steps(OrderSession(lines), "", "1", "2", "20000"))
    assert [(step.terminated, step.success) for step in bad][-1] == (True, False)
    assert bad[-1].info == {"progress": 0.5, "right_tools": ["multiply"]}


def test_the_recipe_has_the_weights_of_the_playbook() -> None:
    run = load_recipe("playbook")
    assert {term.name: term.weight for term in run.rewards} == {  # type: ignore[attr-defined]
        "trajectory": 1.0, "trajectory_score": 0.5, "step_cost": 0.1, "tool_errors": 0.2, "progress": 0.3,
    }  # fmt: skip
    assert len(read_tasks(run.environment, "test")) == 500


@BY_NIGHT
@pytest.mark.slow
def test_the_recipe_trains_with_every_term_logged_and_every_metric_that_its_environment_declares(
    tmp_path: Path,
) -> None:
    words = ["--output", str(tmp_path), "--training.steps", "1", "--rollout.tasks_per_step", "2", "--threads", "1",
             "--rollout.samples_per_task", "2", "--algorithm.critic.warmup_steps", "0"]  # fmt: skip
    run = load_recipe("playbook", words)
    train(run, folder := RunFolder.create(run))
    (row,) = folder.read_metrics()
    assert {name for name in row if name.startswith("rewards/")} >= {
        "rewards/trajectory", "rewards/trajectory_score", "rewards/step_cost", "rewards/progress",
    }  # fmt: skip
    assert row["rewards/progress"] == pytest.approx(0.3 * row["goal_progress"])
    assert row["rewards/trajectory_score"] == pytest.approx(0.5 * row["trajectory_score"])
    assert row["rewards/trajectory"] == pytest.approx(row["accuracy"])
    assert "step_efficiency" in row
