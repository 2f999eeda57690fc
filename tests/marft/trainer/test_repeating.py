"""What a team did best, and repeats: which attempts, and what their loss is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from marft.config.interfaces.credit import CreditInputs
from marft.config.interfaces.schedule import Progress
from marft.trainer.credit.best import Best
from marft.trainer.scoring import score_actions
from tests.learners import begun, episodes, recipe, samples_of
from tests.marft.trainer.test_preferences import attempt

START = Progress(0, 0)


class TestBest:
    def test_repeats_what_solved_the_task(self) -> None:
        credits = Best().assign(CreditInputs([attempt(0, 1.0), attempt(1, 0.0), attempt(2, 1.0)], "token"))
        assert list(credits.trained) == [True, True, False, False, True, True]
        assert credits.metrics["imitation/selected"] == 2.0
        assert [row.tolist() for row in credits.advantages[:3]] == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]

    def test_what_was_said_before_counts_once(self) -> None:
        again = [attempt(0, 1.0), attempt(1, 1.0)]
        same = replace(again[1], actions=tuple(
            replace(a, tokens=b.tokens) for a, b in zip(again[1].actions, again[0].actions, strict=True)
        ))  # fmt: skip
        assert Best().assign(CreditInputs([again[0], same], "token")).metrics["imitation/duplicates"] == 1.0
        assert Best(distinct=False).assign(CreditInputs([again[0], same], "token")).metrics["imitation/selected"] == 2.0

    def test_what_was_cut_off_is_not_repeated(self) -> None:
        long = attempt(0, 1.0)
        long = replace(long, actions=(long.actions[0], replace(long.actions[1], finish="length")))
        credits = Best().assign(CreditInputs([long], "token"))
        assert (credits.metrics["imitation/truncated"], any(credits.trained)) == (1.0, False)
        assert all(Best(drop_truncated=False).assign(CreditInputs([long], "token")).trained)

    def test_the_best_of_a_group_is_kept_where_it_tells_attempts_apart(self) -> None:
        batch = [attempt(0, 0.2), attempt(1, 0.7), attempt(2, 0.7)]
        assert list(Best(select="best").assign(CreditInputs(batch, "token")).trained) == [False] * 2 + [True] * 4
        assert (
            list(Best(select="best", max_per_task=1).assign(CreditInputs(batch, "token")).trained)
            == [False] * 2 + [True] * 2 + [False] * 2
        )
        assert not any(Best(select="best").assign(CreditInputs(batch[1:], "token")).trained)

    @pytest.mark.parametrize("judged_by", ["team", "own"])
    def test_costs_make_no_attempt_the_best(self, judged_by: Literal["team", "own"]) -> None:
        """What is taken off for KL tells apart what earned the same, and nothing else."""
        credit = Best(select="best", judged_by=judged_by, max_per_task=1)

        def trained(rewards: list[float], costs: list[float]) -> list[bool]:
            batch = [attempt(n, reward) for n, reward in enumerate(rewards)]
            of_actions = [np.array([cost]) for cost in costs for _ in range(2)]
            found = credit.assign(CreditInputs(batch, "action", costs=of_actions)).trained
            return [*(found or ())][::2]

        assert trained([1.0, 1.0], [0.0, 5.0]) == [False, False]
        assert trained([1.0, 0.0], [5.0, 0.0]) == [True, False]
        assert trained([1.0, 1.0, 0.0], [2.0, 1.0, 0.0]) == [False, True, False]

    def test_of_those_that_solved_it_the_ones_that_earned_most_are_kept_first(self) -> None:
        batch = [attempt(0, 0.2), attempt(1, 0.7), attempt(2, 0.4)]
        credits = Best(max_per_task=1).assign(CreditInputs(batch, "token"))
        assert list(credits.trained) == [False] * 2 + [True] * 2 + [False] * 2
        assert credits.metrics["imitation/surplus"] == 2.0

    def test_each_agent_may_have_a_best_attempt_of_its_own(self) -> None:
        batch = [attempt(0, 0.0, own={"a": 1.0}), attempt(1, 0.0, own={"b": 1.0})]
        credits = Best(select="best", judged_by="own").assign(CreditInputs(batch, "token"))
        assert list(credits.trained) == [True, False, False, True]

    def test_the_loss_is_the_mean_negative_log_likelihood_of_kept_tokens(self, tmp_path: Path) -> None:
        """That of supervised learning (learning/supervised.py), at the sampling temperature."""
        run = recipe(tmp_path, "rft", "--algorithm.minibatches", "1")
        learner = begun(run)
        batch = [replace(e, success=e.total_reward > 0) for e in episodes()]
        kept = samples_of([e for e in batch if e.success])
        wanted = score_actions(replace(learner.packing, level="action"), kept)
        losses = {
            role: -np.concatenate([row for key, row in wanted.items() if key.agent == role]).mean()
            for role in ("reasoner", "actor")
        }  # fmt: skip
        assert learner.learn(batch, START)["policy_loss"] == pytest.approx(sum(losses.values()), rel=1e-4)
