"""What ranks tell of a step is what one process tells, each number counted once; with fewer rows than ranks, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marft.common.types import ActionCredit, Episode
from marft.config import RunSettings
from marft.config.interfaces.schedule import Progress
from marft.trainer.ranks.interface import SINGLE_RANK, Ranks
from tests.learners import begun, episodes, recipe
from tests.marft.trainer import test_ranks
from tests.marft.trainer.test_ranks import CASES, LOADING, weights
from tests.marft.trainer.test_ranks_placed import same
from tests.nights import NIGHT

EPSILON = ("--algorithm.optimizer.epsilon", "1e-4")


def told(run: RunSettings, batch: Sequence[Episode], ranks: Ranks) -> Any:
    """Metrics, what was made of each action, and the weights after it."""
    with LOADING:
        learner = begun(run, ranks)
    credits: list[ActionCredit] = []
    return learner.learn(batch, Progress(0, 0), credits.extend), credits, weights(learner)


def close(found: Any, right: Any) -> bool:
    if found is None or right is None:
        return found is right
    return bool(np.allclose(found, right, rtol=2e-3, atol=1e-5))


def test_every_rank_tells_of_all_actions_and_counts_nothing_twice(tmp_path: Path) -> None:
    """Stops and the team's KL are the same on all: they are no sums over ranks."""
    changes = ("--algorithm.epochs", "2", "--algorithm.minibatches", "2", "--algorithm.entropy_coefficient", "0.01")
    limits = ("--algorithm.team_kl", "0.1", "--algorithm.kl_stop", "1e-7")
    steps = ("--algorithm.optimizer.learning_rate", "1e-3", "--algorithm.optimizer.max_gradient_norm", "1e-3")
    run = recipe(tmp_path, "ppo", *EPSILON, *changes, *limits, *steps)
    batch = episodes(3, noise=0.02)
    expected, right, _ = told(run, batch, SINGLE_RANK)
    assert expected["kl_stops"] == 1.0
    assert expected["team_kl"] > 1e-3
    assert expected["gradient_norm"] > 1.0, "it is clipped, and so is no rank's own"
    for metrics, credits, _ in test_ranks.together(2, lambda member: told(run, batch, member)):
        assert not same(metrics, expected)
        for mine, of_one in zip(credits, right, strict=True):
            assert mine.action.key == of_one.action.key
            for name in ("raw_advantages", "advantages", "values", "entropy", "log_prob_diff", "gradient_size"):
                assert close(getattr(mine, name), getattr(of_one, name)), name


def test_policies_that_say_no_numbers_stop_all_and_all_have_their_scores(tmp_path: Path) -> None:
    """What was scored is compared with the base's, by all ranks together."""
    run, batch = recipe(tmp_path, "ppo", "--algorithm.kl_stop", "0.1", *EPSILON), episodes(2)

    def stopped(ranks: Ranks) -> Any:
        with LOADING:
            learner = begun(run, ranks)
        with torch.no_grad():
            for optimizer in learner.optimizers.values():
                next(iter(optimizer.parameters.values())).fill_(float("nan"))
        return learner.learn(batch, Progress(0, 0))

    expected = stopped(SINGLE_RANK)
    assert expected["kl_stops"] == 1.0
    for metrics in test_ranks.together(2, stopped):
        assert not same(metrics, expected)


@pytest.mark.parametrize("name", [name for name in CASES if NIGHT or name in ("marft", "ppo")])
def test_three_ranks_with_two_rows_in_a_step_learn_what_one_process_learns(name: str, tmp_path: Path) -> None:
    """Two agents, one episode: a rank has nothing, and steps as the others do."""
    run, batch = recipe(tmp_path, name, *CASES[name], *EPSILON), episodes(1, noise=0.02)
    expected, _, right = told(run, batch, SINGLE_RANK)
    for metrics, _, mine in test_ranks.together(3, lambda member: told(run, batch, member)):
        assert not same(metrics, expected)
        assert all(torch.allclose(mine[key], right[key], rtol=1e-4, atol=2e-6) for key in right)
