"""Whole sequential updates against slow ones: plain loops over decisions between one policy's turn and the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import marft.trainer.learner as learner_module
from marft.common.types import Action, ActionKey, Episode, Sample
from marft.config import RunSettings
from marft.config.interfaces.credit import CreditOutput, Floats
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import collect_rollouts, load_training_tasks
from marft.runs.state import State
from marft.trainer import update as update_module
from marft.trainer.batching import Packing
from marft.trainer.credit.step_gae import StepGAE
from marft.trainer.learner import CreditedBatch, Learner
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.ranks.interface import Ranks
from marft.trainer.scoring import score_actions
from marft.trainer.update import PolicyUpdater
from marft.trainer.update_schedules import A2PO
from tests import references
from tests import references_credit as slow
from tests.helpers import settings

START = Progress(0, 0)
Parameters = dict[str, torch.Tensor]
Correct = Callable[[Learner, CreditedBatch, UpdatePhase, Sequence[float]], list[Sample]]


def recipe(tmp_path: Path, name: str, *overrides: str) -> RunSettings:
    return settings(
        "tiny", tmp_path, "--algorithm",
        f"{{ name = '{name}', optimizer = {{ learning_rate = 2e-2, epsilon = 1e-3, warmup_steps = 0 }} }}",
        "--algorithm.critic.warmup_steps", "0", "--algorithm.kl_stop", "0", "--algorithm.epochs", "1", *overrides,
        environment={"name": "tests.plugins:Flaky", "steps": 2, "alternates": True},
    )  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[Episode]:
    """Episodes of two environment steps, with rewards that differ."""
    run = recipe(tmp_path_factory.mktemp("played"), "happo")
    with LocalRolloutRunner(run) as rollouts:
        return collect_rollouts(rollouts, load_training_tasks(run), State(), lambda _: None).training_episodes


def learned(run: RunSettings, episodes: Sequence[Episode]) -> tuple[Parameters, dict[str, float]]:
    """What the learner makes of the policies."""
    learner = Learner(run, PolicyRegistry(run))
    metrics = learner.learn(episodes, START)
    return parameters(learner), metrics


def parameters(learner: Learner) -> Parameters:
    return {f"{p}.{n}": w.detach().clone() for p, o in learner.optimizers.items() for n, w in o.parameters.items()}


def slowly(run: RunSettings, episodes: Sequence[Episode], correct: Correct) -> Parameters:
    """The same by plain loops: before each turn, how far everybody before has moved at each (episode, step)."""
    learner = Learner(run, PolicyRegistry(run))
    credited = learner.assign_credit(episodes, FixedLogProbs())
    for optimizer in learner.optimizers.values():
        optimizer.begin_step(0)
    update = PolicyUpdater(learner.update_setup(), FixedLogProbs())
    updated: list[str] = []
    for phase in learner.schedule.plan_phases(START, tuple(learner.optimizers), run.seed):
        factors = [
            step_ratio(learner, episode, action, updated) for episode in episodes for action in episode.actions
        ]  # fmt: skip
        update.run(phase, correct(learner, credited, phase, factors), 0)
        updated += phase.policies
    return parameters(learner)


def step_ratio(learner: Learner, episode: Episode, action: Action, updated: Sequence[str]) -> float:
    """M: the product of new/old ratios of the updated policies' actions in the action's step, cut to [1/2, 2]."""
    product = 1.0
    for other in episode.actions:
        if other.step == action.step and other.policy in updated:
            new = score_actions(learner.packing, [Sample(other, 1.0, np.zeros(1))])[other.key]
            logs = [float(n) - float(o) for n, o in zip(new, other.log_probs, strict=True)]
            product *= math.exp(sum(logs) / len(logs))
    return min(2.0, max(0.5, product))


def happo(learner: Learner, credited: CreditedBatch, phase: UpdatePhase, factors: Sequence[float]) -> list[Sample]:
    return [
        replace(sample, advantages=sample.advantages * m) for sample, m in zip(credited.samples, factors, strict=True)
    ]


def a2po(learner: Learner, credited: CreditedBatch, phase: UpdatePhase, factors: Sequence[float]) -> list[Sample]:
    inputs, advantages, first = credited.inputs, [], 0
    assert inputs.values is not None
    for number, episode in enumerate(inputs.episodes):
        last = first + len(episode.actions)
        values = [row.tolist() for row in inputs.values.actions[first:last]]
        final = inputs.values.bootstrap[number]
        advantages += slow.step_gae(episode, values, final, "first", 0.99, 0.95, factors[first:last])
        first = last
    width = 0.2 * phase.clip_scale / 2
    return [
        replace(s, advantages=np.array([a]), log_factor=math.log(min(1 + width, max(1 - width, m))))
        for s, a, m in zip(credited.samples, references.normalised(advantages), factors, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "correct"), [("happo", happo), ("a2po", a2po)])
def test_a_sequential_update_equals_the_slow_one(
    name: str, correct: Correct, played: list[Episode], tmp_path: Path
) -> None:
    run = recipe(tmp_path, name)
    fast, _ = learned(run, played)
    by_loops = slowly(run, played, correct)
    for key, value in fast.items():
        torch.testing.assert_close(value, by_loops[key], rtol=1e-3, atol=2e-6)
    plain, _ = learned(recipe(tmp_path, name, "--algorithm.schedule", "{ name = 'simultaneous' }"), played)
    assert any((plain[key] - value).abs().max() > 1e-4 for key, value in fast.items())  # the correction does something


def test_the_clip_of_a2po_widens_from_policy_to_policy(played: list[Episode], tmp_path: Path) -> None:
    learner = Learner(run := recipe(tmp_path, "a2po"), PolicyRegistry(run))
    phases = list(learner.schedule.plan_phases(START, ("a", "b", "c", "d"), 0))
    assert [phase.clip_scale for phase in phases] == pytest.approx([0.5 + 0.5 * i / 4 for i in (1, 2, 3, 4)])


class TestSemiGreedyOrder:
    """A2PO: by turns the policy with the largest advantages, and one that is drawn."""

    SIZES: ClassVar = {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.7}

    def orders(self, steps: int = 60) -> list[list[str]]:
        schedule = A2PO()
        return [
            [phase.policies[0] for phase in schedule.plan_phases(Progress(step, 0, self.SIZES), tuple(self.SIZES), 0)]
            for step in range(steps)
        ]

    def test_every_other_turn_is_the_largest_of_those_left(self) -> None:
        for order in self.orders():
            assert sorted(order) == ["a", "b", "c", "d"]
            for place in (0, 2):
                assert order[place] == max(order[place:], key=self.SIZES.__getitem__)

    def test_the_turns_between_are_drawn_and_the_same_again_under_the_same_seed(self) -> None:
        orders = self.orders()
        assert {order[1] for order in orders} == {"a", "c", "d"}
        assert self.orders() == orders

    def test_between_equals_the_draw_decides(self) -> None:
        firsts = {
            A2PO().plan_phases(Progress(step, 0, {"a": 1.0, "b": 1.0}), ("a", "b"), 0)[0].policies for step in range(20)
        }
        assert firsts == {("a",), ("b",)}

    def test_the_learner_says_how_large_each_policys_advantages_are(
        self, played: list[Episode], tmp_path: Path
    ) -> None:
        told: list[Progress] = []

        class Told(A2PO):
            def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
                told.append(progress)
                return super().plan_phases(progress, policies, seed)

        run = recipe(tmp_path, "a2po")
        learner = Learner(run, PolicyRegistry(run))
        learner.schedule = Told()
        credited = learner.assign_credit(played, learner.score_before_update(played))
        sizes: dict[str, list[float]] = {}
        for action, row in zip(credited.inputs.actions, credited.credit.advantages, strict=True):
            sizes.setdefault(action.policy, []).extend(abs(float(x)) for x in row)
        learner.learn(played, START)
        assert told[0].advantages == pytest.approx({name: sum(rows) / len(rows) for name, rows in sizes.items()})
        assert all(size > 0 for size in told[0].advantages.values())


def test_with_one_shared_policy_happo_is_ppo(played: list[Episode], tmp_path: Path) -> None:
    shared = ("--agents.actor.policy", "reasoner", "--algorithm.credit", "{ name = 'step-gae' }")
    episodes = [replace(e, actions=tuple(replace(a, policy="reasoner") for a in e.actions)) for e in played]
    results = []
    for schedule in ("sequential", "simultaneous"):
        run = recipe(tmp_path, "happo", *shared, "--algorithm.schedule", f"{{ name = '{schedule}' }}", "--policies",
                     "{ reasoner = { model = 'base' } }")  # fmt: skip
        results.append(learned(run, episodes)[0])
    assert results[0].keys() == results[1].keys()
    for key, value in results[0].items():
        assert torch.equal(value, results[1][key])


class TestAcceptance:
    """HATRPO: an update counts only as far as its KL stays inside the trust region."""

    @staticmethod
    def moved(run: RunSettings, episodes: Sequence[Episode]) -> tuple[dict[str, float], dict[str, float], Parameters]:
        learner = Learner(run, PolicyRegistry(run))
        metrics = learner.learn(episodes, START)
        kl: dict[str, list[float]] = {}
        for episode in episodes:
            for action in episode.actions:
                new = score_actions(learner.packing, [Sample(action, 1.0, np.zeros(1))])[action.key]
                for n, o in zip(new, action.log_probs, strict=True):
                    kl.setdefault(action.policy, []).append(math.exp(n - float(o)) - 1 - (n - float(o)))
        return {policy: sum(rows) / len(rows) for policy, rows in kl.items()}, metrics, parameters(learner)

    @pytest.mark.parametrize("limit", [1e-3, 1e-5])
    def test_no_policy_moves_further_than_the_limit(self, limit: float, played: list[Episode], tmp_path: Path) -> None:
        run = recipe(tmp_path, "hatrpo", "--algorithm.schedule.kl_limit", str(limit))
        kl, metrics, _ = self.moved(run, played)
        assert all(value <= limit * 1.01 for value in kl.values())
        assert metrics["accepted_fraction"] < 1.0

    def test_what_no_fraction_can_save_is_undone(self, played: list[Episode], tmp_path: Path) -> None:
        run = recipe(tmp_path, "hatrpo", "--algorithm.schedule.kl_limit", "1e-12")
        _, metrics, after = self.moved(run, played)
        before = parameters(Learner(run, PolicyRegistry(run)))
        assert metrics["rollbacks"] == 1.0
        assert all(torch.equal(after[key], value) for key, value in before.items())

    def test_what_makes_the_surrogate_worse_is_undone_however_wide_the_region(
        self, played: list[Episode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Uphill(PolicyOptimizer):
            def clip_gradient(self) -> Tensor:
                for parameter in self.parameters.values():
                    if parameter.grad is not None:
                        parameter.grad.neg_()
                return super().clip_gradient()

        monkeypatch.setattr(learner_module, "PolicyOptimizer", Uphill)
        run = recipe(tmp_path, "hatrpo", "--algorithm.schedule.kl_limit", "100",
                     "--algorithm.optimizer.learning_rate", "1e-3")  # fmt: skip
        after, metrics = learned(run, played)
        assert metrics["rollbacks"] == 1.0
        before = parameters(Learner(run, PolicyRegistry(run)))
        assert all(torch.equal(after[key], value) for key, value in before.items())

    def test_what_is_undone_leaves_no_moments_behind(self, played: list[Episode], tmp_path: Path) -> None:
        run = recipe(tmp_path, "hatrpo", "--algorithm.schedule.kl_limit", "100",
                     "--algorithm.optimizer.learning_rate", "1e-3")  # fmt: skip
        learner = Learner(run, PolicyRegistry(run))
        assert learner.learn(played, START)["rollbacks"] == 0.0  # there are moments now
        before = {name: optimizer.snapshot() for name, optimizer in learner.optimizers.items()}
        learner.schedule = learner.schedule.model_copy(update={"kl_limit": 1e-12})  # type: ignore[attr-defined]
        assert learner.learn(played, Progress(1, 0))["rollbacks"] == 1.0
        for name, optimizer in learner.optimizers.items():
            now = optimizer.snapshot()
            assert before[name].moments.keys() == now.moments.keys() != set()
            assert all(torch.equal(now.moments[key], value) for key, value in before[name].moments.items())
            assert all(map(torch.equal, now.parameters.values(), before[name].parameters.values()))

    def test_what_has_nothing_to_improve_is_undone_unscored_and_is_no_rollback(
        self, played: list[Episode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every advantage is 0, and the entropy's gradient and Adam's momentum move the policies all the same."""
        scored: list[int] = []

        def counted(packing: Packing, wanted: Sequence[Sample], *ranks: Ranks) -> dict[ActionKey, Floats]:
            scored.append(len(wanted))
            return score_actions(packing, wanted)

        run = recipe(tmp_path, "hatrpo", "--algorithm.schedule.kl_limit", "100", "--algorithm.entropy_coefficient", "0.1",
                     "--algorithm.optimizer.learning_rate", "1e-3", "--algorithm.minibatches", "1")  # fmt: skip
        learner = Learner(run, PolicyRegistry(run))
        learner.learn(played, START)
        before = {name: optimizer.snapshot() for name, optimizer in learner.optimizers.items()}
        monkeypatch.setattr(
            StepGAE, "assign", lambda self, inputs: CreditOutput(*[[np.zeros(1)] * len(inputs.actions)] * 3)
        )
        monkeypatch.setattr(update_module, "score_actions", counted)
        metrics = learner.learn(played, Progress(1, 0))
        assert not {"rollbacks", "accepted_fraction"} & metrics.keys()
        assert metrics["gradient_norm"] > 0
        assert len(scored) == 1  # what the first policy has moved, which the second is told of
        for name, optimizer in learner.optimizers.items():
            now = optimizer.snapshot()
            assert all(map(torch.equal, now.parameters.values(), before[name].parameters.values()))
            assert all(torch.equal(now.moments[key], value) for key, value in before[name].moments.items())

    def test_what_improves_nothing_is_undone(self, played: list[Episode], tmp_path: Path) -> None:
        """An update that changes no log-prob is as good as none, and no better."""
        run = recipe(tmp_path, "hatrpo", "--algorithm.schedule.kl_limit", "100",
                     "--algorithm.optimizer.learning_rate", "1e-12")  # fmt: skip
        _, metrics = learned(run, played)
        assert (metrics["accepted_fraction"], metrics["rollbacks"]) == (0.0, 1.0)

    @pytest.mark.parametrize(
        ("level", "correction"), [("action", "geometric"), ("action", "action"), ("token", "token")]
    )
    def test_the_gain_is_that_of_the_loss_with_the_samplers_correction(
        self, level: str, correction: str, played: list[Episode], tmp_path: Path
    ) -> None:
        """In plain loops: terms at π_old less terms now, weighed with min(π_old/μ, 2), 0 outside of [0.8, 5]."""
        run = recipe(
            tmp_path, "hatrpo", "--algorithm.level", level, "--algorithm.sampler_correction",
            f"{{ level = '{correction}', mask_low = 0.8, mask_high = 5.0 }}", "--algorithm.objective", "{ name = 'ppo', clip = 0.2 }",
            *(("--algorithm.aggregation", "token-mean") if level == "token" else ()),
        )  # fmt: skip
        random = np.random.default_rng(0)
        drifted = [
            replace(e, actions=tuple(
                replace(a, log_probs=a.log_probs + random.normal(0, 0.4, len(a.log_probs)).astype(np.float32))
                for a in e.actions
            )) for e in played
        ]  # fmt: skip
        learner = Learner(run, PolicyRegistry(run))
        credited = learner.assign_credit(drifted, FixedLogProbs())
        samples = [sample for sample in credited.samples if sample.action.policy == "actor"]
        update = PolicyUpdater(learner.update_setup(), FixedLogProbs())
        update.old = score_actions(learner.packing, samples)
        now = {key: row + random.normal(0, 0.2, len(row)) for key, row in update.old.items()}
        tokens = sum(len(row) for row in now.values())
        tokens = sum(len(row) for row in now.values())
        gain, weights = 0.0, []
        for sample in samples:
            action = sample.action
            old, new = (rows[action.key].tolist() for rows in (update.old, now))
            off = [o - float(e) for o, e in zip(old, action.log_probs, strict=True)]
            whole = sum(off) / (len(off) if correction == "geometric" else 1)
            units = list(zip(old, new, off, strict=True)) if level == "token" else [
                (sum(old) / sample.normalizer, sum(new) / sample.normalizer, whole)
            ]  # fmt: skip
            for (before, after, difference), a in zip(units, sample.advantages.tolist(), strict=True):
                weights.append(min(2.0, math.exp(difference)) if 0.8 <= math.exp(difference) <= 5.0 else 0.0)
                ratio = math.exp(after - before)
                better = min(ratio * a, max(0.8, min(1.2, ratio)) * a) - a
                gain += weights[-1] * better / (tokens if level == "token" else len(samples))
        assert 0.0 in weights
        assert update._compute_gain(samples, learner.objective, now) == pytest.approx(gain, rel=1e-4, abs=1e-7)

    def test_a_wide_region_is_happo(self, played: list[Episode], tmp_path: Path) -> None:
        small = "--algorithm.optimizer.learning_rate", "1e-3"  # so small that the surrogate improves
        wide, metrics = learned(recipe(tmp_path, "hatrpo", "--algorithm.schedule.kl_limit", "100", *small), played)
        plain, _ = learned(recipe(tmp_path, "hatrpo", "--algorithm.schedule.kl_limit", "0", *small), played)
        assert metrics["accepted_fraction"] == 1.0
        assert all(torch.equal(plain[key], value) for key, value in wide.items())
