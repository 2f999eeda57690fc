"""VAPO's likelihood of what succeeded: where an environment does not say what did, a positive reward does, and it is
counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft.common.types import Episode, Observation, Step, Task, Transition
from marft.config.interfaces.credit import CreditOutput
from marft.config.interfaces.schedule import Progress
from marft.models.policy_registry import PolicyRegistry
from marft.rewards.shaping import is_success, success_metrics
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import collect_rollouts, load_training_tasks
from marft.runs.state import State
from marft.trainer.batching import make_samples
from marft.trainer.learner import Learner
from marft.trainer.micro_batch import FixedLogProbs
from tests.episodes import make_action
from tests.helpers import settings
from tests.plugins import Flaky


class Wordless(Flaky):
    """Rewards, but does not say what was solved."""

    def start(self, task: Task, seed: int) -> Any:
        session = super().start(task, seed)
        inner = session.step

        async def step(joint: Any) -> Step:
            done = await inner(joint)
            return Step(done.observation, done.reward, terminated=done.terminated)

        session.step = step  # type: ignore[method-assign]
        return session


def earning(team: float, own: float = 0.0, success: bool | None = None) -> Episode:
    paid = (Transition(Observation("o"), team, {"a": own} if own else {}),)
    return Episode(Task("t", "o"), "s", 0, (make_action("a"),), "terminated", paid, success=success)


@pytest.mark.parametrize(
    ("episode", "expected"),
    [
        (earning(1.0), True),
        (earning(0.0), False),
        (earning(0.5, own=-0.6), False),
        (earning(0.0, own=0.1), True),
        (earning(1.0, success=False), False),  # the environment's word comes first
        (earning(0.0, success=True), True),
    ],
)
def test_an_episode_that_nobody_called_solved_goes_by_its_reward(episode: Episode, expected: bool) -> None:
    assert is_success(episode) is expected
    samples, _ = make_samples([episode], CreditOutput([np.zeros(1)]), ["a"], "none", False)
    assert samples[0].solved is expected


def test_what_was_judged_by_reward_is_counted() -> None:
    metrics = success_metrics([earning(1.0), earning(0.0), earning(0.0, success=True), earning(1.0, success=False)])
    assert metrics == {"likelihood/successes": 0.5, "likelihood/judged_by_reward": 2.0}


def test_what_is_made_of_a_reward_for_credit_makes_no_success_a_failure(tmp_path: Path) -> None:
    """A right answer that comes close to its limit pays for its length, and is a right answer all the same."""
    run = settings(
        "tiny", tmp_path, "--algorithm",
        "{ name = 'vapo', critic = { warmup_steps = 0 }, reward = { team_weight = 0.5, overlong_buffer = 4 } }",
    )  # fmt: skip
    learner = Learner(run, PolicyRegistry(run))
    batch = [
        Episode(Task("t", "o"), "s", n, (make_action("actor", tokens=tuple(range(3, 11)), sample=n),), "terminated",
                (Transition(Observation("o"), float(n)),))
        for n in range(2)
    ]  # fmt: skip
    credited = learner.assign_credit(batch, FixedLogProbs())
    assert [sum(e.transitions[0].agent_rewards.values()) for e in credited.inputs.episodes] == [-1.0, -1.0]
    assert [sample.solved for sample in credited.samples] == [False, True]
    assert learner.learn(batch, Progress(0, 0))["likelihood/successes"] == 0.5


def test_vapo_learns_the_likelihood_where_the_environment_does_not_say_what_was_solved(tmp_path: Path) -> None:
    def learned(nll: str) -> dict[str, float]:
        run = settings(
            "tiny", tmp_path, "--algorithm", f"{{ name = 'vapo', nll_coefficient = {nll}, critic = {{ warmup_steps = 0 }} }}",
            environment={"name": "tests.marft.trainer.test_successes:Wordless", "alternates": True},
        )  # fmt: skip
        with LocalRolloutRunner(run) as rollouts:
            episodes = collect_rollouts(rollouts, load_training_tasks(run), State(), lambda _: None).training_episodes
        assert all(e.success is None for e in episodes)
        return Learner(run, PolicyRegistry(run)).learn(episodes, Progress(0, 0))

    plain, likely = learned("0.0"), learned("0.1")
    assert likely["policy_loss"] - plain["policy_loss"] > 1e-3  # −μ log π of what earned a reward
    assert likely["likelihood/judged_by_reward"] == 4
    assert likely["likelihood/successes"] == 0.5
    assert "likelihood/successes" not in plain
