"""The team's trust region: all policies together move by no more than the budget, and each by its share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from marft.common.types import ActionKey, Episode
from marft.config.algorithm import AlgorithmSettings
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.trainer.learner import Learner
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.scoring import score_actions
from marft.trainer.trust_region import environment_steps, fit_to_budget, joint_kl, scale_to_budget, split_budget
from tests import references
from tests.episodes import episodes as random_episodes
from tests.learners import begun, episodes, recipe, samples_of
from tests.nights import some

FAST = (
    "--algorithm.optimizer.learning_rate",
    "3e-3",
    "--algorithm.optimizer.warmup_steps",
    "0",
    "--algorithm.kl_stop",
    "0",
)
Scored = dict[ActionKey, list[float]]


def scored(learner: Learner, batch: Sequence[Episode]) -> Scored:
    return {key: row.tolist() for key, row in score_actions(learner.packing, samples_of(batch)).items()}


def parameters(learner: Learner) -> dict[str, torch.Tensor]:
    return {f"{p}.{n}": w.detach().clone() for p, o in learner.optimizers.items() for n, w in o.parameters.items()}


@given(st.lists(random_episodes(), min_size=1, max_size=3), st.integers(0, 99))
def test_the_joint_kl_is_that_of_plain_loops_and_the_sum_over_policies(batch: list[Episode], seed: int) -> None:
    random = np.random.default_rng(seed)
    batch = [_renamed(episode, number) for number, episode in enumerate(batch)]
    samples = samples_of(batch)
    assume(samples)
    old = {s.action.key: random.normal(-2, 1, len(s.action.log_probs)) for s in samples}
    new = {key: row + random.normal(0, 0.3, len(row)) for key, row in old.items()}
    steps = environment_steps(samples)
    whole = joint_kl(samples, old, new, steps)
    assert whole == pytest.approx(references.joint_kl(batch, old, new), abs=1e-12)
    parts = [
        joint_kl([s for s in samples if s.action.policy == policy], old, new, steps)
        for policy in {s.action.policy for s in samples}
    ]
    assert math.fsum(parts) == pytest.approx(whole, abs=1e-12)
    assert joint_kl(samples, old, old, steps) == 0.0


@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True), min_size=1, max_size=5),
    st.sets(st.sampled_from("abcd")),
    st.floats(1e-6, 10),
)
def test_phases_share_the_budget_by_how_many_move(turns: list[list[str]], acted: set[str], budget: float) -> None:
    mine = split_budget([UpdatePhase(tuple(turn)) for turn in turns], acted, budget)
    assert math.fsum(mine) == pytest.approx(budget if acted & {name for turn in turns for name in turn} else 0.0)
    moves = sum(len(acted & set(turn)) for turn in turns)
    for turn, share in zip(turns, mine, strict=True):
        assert share == pytest.approx(budget * len(acted & set(turn)) / max(1, moves))


class TestHolding:
    """On one parameter that begins at 1 and has been moved to 3."""

    @staticmethod
    def held(kl: Callable[[float], float], budget: float) -> tuple[float, float, float]:
        parameter = torch.nn.Parameter(torch.tensor([1.0]))
        optimizer = PolicyOptimizer({"x": parameter}, AlgorithmSettings().optimizer, 1.0, 1)
        before = optimizer.snapshot()
        parameter.data += 2.0
        fraction, moved = scale_to_budget({"p": optimizer}, {"p": before}, lambda: kl(parameter.item() - 1.0), budget)
        assert parameter.item() == pytest.approx(1.0 + 2.0 * fraction)
        return fraction, moved, parameter.item()

    def test_what_is_within_stays_as_it_is(self) -> None:
        assert self.held(lambda move: move**2, 4.0) == (1.0, 4.0, 3.0)

    def test_a_kl_of_exactly_the_budget_is_accepted(self) -> None:
        fraction, moved, _ = self.held(lambda move: 4.0 if move == 2.0 else 1.0, 1.0)
        assert (fraction, moved) == (fit_to_budget(4.0, 1.0), 1.0)

    @given(st.floats(1e-6, 3.9))
    def test_where_kl_is_a_square_one_correction_meets_the_aim(self, budget: float) -> None:
        fraction, moved, _ = self.held(lambda move: move**2, budget)
        assert fraction == pytest.approx(fit_to_budget(4.0, budget), rel=1e-5)
        assert moved == pytest.approx(0.95 * budget, rel=1e-3)

    @given(st.floats(1e-6, 10), st.floats(0.2, 4))
    def test_whatever_its_shape_the_budget_holds(self, budget: float, power: float) -> None:
        fraction, moved, _ = self.held(lambda move: abs(move) ** power, budget)
        assert moved <= budget
        assert 0.0 <= fraction <= 1.0

    @pytest.mark.parametrize(("budget", "kept"), [(0.5, True), (math.nan, False)])
    def test_moments_are_those_of_the_step_where_some_of_it_stays_else_those_before(
        self, budget: float, kept: bool
    ) -> None:
        parameter = torch.nn.Parameter(torch.tensor([1.0]))
        optimizer = PolicyOptimizer({"x": parameter}, AlgorithmSettings().optimizer, 1.0, 1)
        taken = []
        for gradient in (0.3, -0.7):
            parameter.grad = torch.tensor([gradient])
            taken.append(optimizer.snapshot())
            optimizer.step()
        after = optimizer.snapshot()
        start = taken[1].parameters["x"].item()
        fraction, _ = scale_to_budget(
            {"p": optimizer}, {"p": taken[1]}, lambda: 8 * (parameter.item() - start) ** 2, budget
        )
        assert (0.0 < fraction < 1.0) == kept
        wanted, found = (after if kept else taken[1]).moments, optimizer.snapshot().moments
        assert found.keys() == wanted.keys() == {"x.step", "x.exp_avg", "x.exp_avg_sq"}
        assert all(torch.equal(found[name], value) for name, value in wanted.items())

    @pytest.mark.parametrize("kl", [math.nan, math.inf])
    def test_what_cannot_be_measured_is_undone(self, kl: float) -> None:
        fraction, moved, now = self.held(lambda move: kl if move else 0.0, 1.0)
        assert (fraction, moved, now) == (0.0, 0.0, 1.0)


class TestLearning:
    @pytest.mark.parametrize("name", some(["marft-team", "happo", "a2po", "hatrpo"]))
    def test_the_team_moves_by_no_more_than_the_budget(self, name: str, tmp_path: Path) -> None:
        learner, batch, budget = begun(recipe(tmp_path, name, *FAST, "--algorithm.team_kl", "1e-4")), episodes(), 1e-4
        old = scored(learner, batch)
        metrics = learner.learn(batch, Progress(0, 0))
        moved = references.joint_kl(batch, old, scored(learner, batch))
        assert 0 < moved <= budget * 1.001
        assert metrics["team_kl"] == pytest.approx(moved, rel=1e-3)

    def test_where_agents_act_in_steps_of_their_own_kl_is_still_a_mean_over_all_steps(self, tmp_path: Path) -> None:
        learner = begun(recipe(tmp_path, "happo", *FAST, "--algorithm.team_kl", "1e-4"))
        batch = [
            replace(
                one,
                actions=tuple(replace(a, key=a.key._replace(step=n)) for n, a in enumerate(one.actions)),
                transitions=(*one.transitions, *one.transitions),
            )
            for one in episodes()
        ]
        old = scored(learner, batch)
        metrics = learner.learn(batch, Progress(0, 0))
        moved = references.joint_kl(batch, old, scored(learner, batch))
        assert 0.0 < moved <= 1e-4 * 1.001
        assert metrics["team_kl"] == pytest.approx(moved, rel=1e-3)

    def test_everybody_keeps_the_same_fraction_of_a_move(self, tmp_path: Path) -> None:
        learners = [
            begun(recipe(tmp_path, "marft-team", *FAST, "--algorithm.team_kl", kl)) for kl in ("0", "1e6", "1e-3")
        ]
        before = parameters(learners[0])
        metrics = [learner.learn(episodes(), Progress(0, 0)) for learner in learners]
        free, wide, tight = map(parameters, learners)
        assert "team_kl" not in metrics[0]
        assert metrics[1]["accepted_fraction"] == 1.0 > metrics[2]["accepted_fraction"] > 0.0
        for name, start in before.items():
            assert torch.equal(free[name], wide[name])
            torch.testing.assert_close(tight[name], torch.lerp(start, free[name], metrics[2]["accepted_fraction"]))

    def test_one_agent_alone_within_the_budget_is_ppo_to_the_last_bit(self, tmp_path: Path) -> None:
        """The actor learns, the reasoner is frozen."""
        alone = ("--policies.reasoner", "{ model = 'base', train = 'frozen' }")
        results = []
        for name, kl in (("marft", "0"), ("marft", "1e6")):
            learner = begun(recipe(tmp_path, name, *FAST, *alone, "--algorithm.team_kl", kl))
            learner.learn(episodes(), Progress(0, 0))
            results.append(parameters(learner))
        assert results[0].keys() == results[1].keys()
        assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def _renamed(episode: Episode, number: int) -> Episode:
    """As another attempt."""
    actions = tuple(replace(action, key=action.key._replace(sample=number)) for action in episode.actions)
    return replace(episode, sample=number, actions=actions)
