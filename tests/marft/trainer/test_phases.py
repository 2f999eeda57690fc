"""How an update goes through a phase: what it draws, looks at and counts, and where it stops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marft.common.types import Sample
from marft.config.interfaces.credit import Floats
from marft.config.interfaces.objective import LossInputs, LossOutput, Objective
from marft.config.interfaces.schedule import UpdatePhase
from marft.trainer import update as minibatches_module
from marft.trainer import update as update_module
from marft.trainer.batching import minibatches
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.objectives.cispo import CISPO
from marft.trainer.objectives.ppo import PPO
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.scoring import score_actions
from marft.trainer.update import PACKING_CHECK_INTERVAL, Minibatch, PolicyUpdater, UpdateSetup
from tests.learners import begun, episodes, recipe, samples_of

ROLES = ("reasoner", "actor")


def update_of(tmp_path: Path, *overrides: str, name: str = "marft", seed: int = 0, **arguments: Any) -> PolicyUpdater:
    """An update on the tiny model; ``overrides`` of its algorithm."""
    learner = begun(recipe(tmp_path, name, "--algorithm.kl_stop", "0", *overrides))
    setup = replace(learner.update_setup(), seed=seed)
    return PolicyUpdater(setup, FixedLogProbs(), **arguments)


def weights(update: PolicyUpdater) -> dict[str, list[torch.Tensor]]:
    return {name: list(optimizer.snapshot().parameters.values()) for name, optimizer in update.optimizers.items()}


class Looking(PolicyUpdater):
    """Steps nothing; keeps what each minibatch is asked, and says at one of them that the KL is above the limit."""

    stop_at = -1

    def _process_minibatch(
        self, samples: Sequence[Sample], objective: Objective, is_first_epoch: bool, check: Sequence[Sample]
    ) -> bool:
        self.asked = [*getattr(self, "asked", []), (list(samples), is_first_epoch, list(check))]
        return len(self.asked) - 1 != self.stop_at


class TestEpochs:
    @staticmethod
    def looked(tmp_path: Path, stop_at: int = -1) -> tuple[Looking, list[list[list[Sample]]], list[Sample]]:
        update = update_of(tmp_path)
        looking = Looking(
            UpdateSetup(update.settings, update.objective, update.optimizers, update.packing), FixedLogProbs()
        )
        looking.stop_at = stop_at
        samples = samples_of(episodes(6))
        plan = [minibatches(samples, 3, 0, 0, epoch) for epoch in range(2)]
        to_check = samples[:2]
        looking._run_epochs([[*map(Minibatch, parts)] for parts in plan], looking.objective, to_check)
        return looking, plan, to_check

    def test_every_minibatch_of_every_epoch_comes_in_order(self, tmp_path: Path) -> None:
        """The first of all compares scores of one packing with another's; the first epoch, the engine's with the learner's."""
        looking, plan, to_check = self.looked(tmp_path)
        assert [samples for samples, _, _ in looking.asked] == [part for parts in plan for part in parts]
        assert [first for _, first, _ in looking.asked] == [True] * 3 + [False] * 3
        assert [check for *_, check in looking.asked] == [to_check, [], [], [], [], []]
        assert looking.accumulator.total("kl_stops") == 0.0

    @pytest.mark.parametrize("stop_at", range(6))
    def test_the_kl_stop_ends_them_all_and_is_counted_once(self, stop_at: int, tmp_path: Path) -> None:
        looking, _, _ = self.looked(tmp_path, stop_at)
        assert len(looking.asked) == stop_at + 1
        assert (looking.accumulator.total("kl_stops"), looking.accumulator.means()["kl_stops"]) == (1.0, 1.0)


class TestAPhase:
    def test_draws_its_minibatches_by_seed_step_and_epoch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn: list[tuple[int, ...]] = []

        def counted(samples: Sequence[Sample], *parts: int) -> list[list[Sample]]:
            drawn.append((len(samples), *parts))
            return minibatches(samples, *parts)

        monkeypatch.setattr(minibatches_module, "minibatches", counted)
        update = update_of(tmp_path, "--algorithm.epochs", "2", "--algorithm.minibatches", "3", seed=11)
        update.run(UpdatePhase(("actor",)), samples_of(episodes(4)), step=7)
        assert drawn == [(4, 3, 11, 7, 0), (4, 3, 11, 7, 1)]

    def test_without_actions_of_its_policies_is_counted_and_does_nothing(self, tmp_path: Path) -> None:
        update, samples = update_of(tmp_path), samples_of(episodes(2))
        before, packing = weights(update), update.packing
        update.run(UpdatePhase(("actor",)), [s for s in samples if s.action.agent == "reasoner"], step=0)
        assert update.accumulator.means() == {"idle_phase_fraction": 1.0}
        assert update.packing is packing  # what was scored before stays comparable
        assert all(all(map(torch.equal, now, before[name])) for name, now in weights(update).items())
        update.run(UpdatePhase(("actor",)), samples, step=0)
        assert update.accumulator.means()["idle_phase_fraction"] == 0.5

    @pytest.mark.parametrize(("moved", "first"), [((), 1), (("actor",), 0), (("reasoner",), 1), (ROLES, 0)])
    def test_scores_before_it_begins_what_it_will_step_on_later(
        self, moved: tuple[str, ...], first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All but the first minibatch, of which its policies are π_old themselves, unless they have moved already."""
        update, samples = update_of(tmp_path, "--algorithm.minibatches", "3"), samples_of(episodes(6))
        update.old = score_actions(update.packing, samples)
        update.updated_policies |= set(moved)
        scored: list[list[Sample]] = []
        monkeypatch.setattr(PolicyUpdater, "_score_old", lambda self, part: scored.append(list(part)))
        update.run(UpdatePhase(("actor",)), samples, step=0)
        actors = [sample for sample in samples if sample.action.agent == "actor"]
        assert scored == minibatches(actors, 3, 0, 0, 0)[first:]

    def test_a_skipped_step_is_counted_for_the_team_and_its_policy(self, tmp_path: Path) -> None:
        update, samples = update_of(tmp_path), samples_of(episodes(4))
        broken = [replace(s, advantages=s.advantages * (math.nan if s.action.agent == "actor" else 1)) for s in samples]
        update.run(UpdatePhase(ROLES), broken, step=0)
        means = update.accumulator.means()
        skipped = {name: value for name, value in means.items() if name.endswith("skipped_updates")}
        assert skipped == {
            "skipped_updates": 0.5, "policies/actor/skipped_updates": 1.0, "policies/reasoner/skipped_updates": 0.0
        }  # fmt: skip
        assert math.isnan(means["gradient_norm"])
        assert means["policies/reasoner/gradient_norm"] > 0.0

    def test_a_policy_is_not_stepped_on_what_was_added_up_before(self, tmp_path: Path) -> None:
        """A gradient that something else has left lies there when the minibatch begins."""
        norms = []
        for left in (0.0, 100.0):
            update = update_of(tmp_path)
            for optimizer in update.optimizers.values():
                for parameter in optimizer.parameters.values():
                    parameter.grad = torch.full_like(parameter, left)
            update.run(UpdatePhase(ROLES), samples_of(episodes(4)), step=0)
            norms.append(update.accumulator.means()["gradient_norm"])
        assert norms[0] == norms[1]


class TestWhatIsChecked:
    @pytest.mark.parametrize(
        ("name", "overrides", "limit", "checks", "looks"),
        [
            ("marft", ("--algorithm.epochs", "2"), 0.0, True, True),
            ("marft", ("--algorithm.epochs", "1"), 0.0, True, False),
            ("marft", ("--algorithm.epochs", "1"), 0.5, True, True),
            ("happo", ("--algorithm.epochs", "1"), 0.0, True, True),
            ("happo", ("--algorithm.epochs", "2"), 0.5, False, False),
        ],
    )
    def test_is_what_will_be_compared_and_has_not_moved(
        self, name: str, overrides: tuple[str, ...], limit: float, checks: bool, looks: bool, tmp_path: Path
    ) -> None:
        update = update_of(tmp_path, *overrides, name=name, check_packing=checks)
        samples = samples_of(episodes(6))
        found = update._select_for_check(UpdatePhase(ROLES, kl_limit=limit), samples)
        assert len(found) == (4 if looks else 0)
        update.updated_policies.add("actor")
        found = update._select_for_check(UpdatePhase(ROLES, kl_limit=limit), samples)
        assert {sample.action.agent for sample in found} == ({"reasoner"} if looks else set())

    def test_policies_that_take_turns_all_have_theirs_checked(self) -> None:
        for policies in range(2, 17):
            assert {
                step % policies for step in range(0, policies * PACKING_CHECK_INTERVAL, PACKING_CHECK_INTERVAL)
            } == set(range(policies))

    def test_nothing_is_unless_it_is_asked_for(self, tmp_path: Path) -> None:
        assert update_of(tmp_path, name="happo")._select_for_check(UpdatePhase(ROLES), samples_of(episodes(6))) == []


class TestWhetherAnUpdateIsGood:
    """Within the KL limit, the limit itself included, and with a better surrogate than before."""

    @pytest.fixture
    def update(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
        update = update_of(tmp_path)
        first, second, *_ = samples_of(episodes(1))
        update.old = {first.action.key: np.array([-1.0]), second.action.key: np.array([-2.0, -3.0, -4.0])}
        now = {first.action.key: np.array([-1.5]), second.action.key: np.array([-2.0, -2.0, -4.25])}
        monkeypatch.setattr(PolicyUpdater, "score_current", lambda self, samples: now)

        def is_good(limit: float, gain: float) -> bool:
            def gained(self: PolicyUpdater, samples: object, objective: object, scores: Mapping[int, Floats]) -> float:
                assert scores is now
                return gain

            monkeypatch.setattr(PolicyUpdater, "_compute_gain", gained)
            return update._is_accepted([first, second], update.objective, limit)

        return is_good

    def test_both_must_hold(self, update: Callable[..., bool]) -> None:
        kl = sum(math.exp(d) - 1 - d for d in (-0.5, 0.0, 1.0, -0.25)) / 4
        assert update(kl * 1.0001, 0.5)
        assert update(kl * 1.0001, 1e-9)
        assert not update(kl * 0.9999, 0.5)
        assert not update(kl * 1.0001, 0.0)
        assert not update(kl * 1.0001, -0.5)
        assert not update(kl * 0.9999, -0.5)

    def test_a_kl_of_exactly_the_limit_is_within(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        update, samples = update_of(tmp_path, "--algorithm.kl_stop", "0.5"), samples_of(episodes(1))
        update.old = update.score_current(samples)
        monkeypatch.setattr(PolicyUpdater, "_compute_gain", lambda *_: 1.0)
        assert update._is_accepted(samples, update.objective, 0.0)
        assert not update._exceeds_kl_stop(np.array([2.0, 4.0]))
        assert update._exceeds_kl_stop(np.array([2.001, 4.0]))
        assert update._exceeds_kl_stop(np.array([math.nan, 4.0]))

    def test_some_advantages_of_0_do_not_keep_an_update_from_being_looked_at(self, tmp_path: Path) -> None:
        overrides = ("--algorithm.optimizer.learning_rate", "1e-4", "--algorithm.level", "token")
        update = update_of(tmp_path, *overrides, name="hatrpo")
        long = [sample for sample in samples_of(episodes(8))[::2] if sample.action.num_decisions > 1]
        samples = [replace(s, advantages=np.eye(1, s.action.num_decisions)[0] * (n % 2)) for n, s in enumerate(long)]
        update.run(UpdatePhase(("reasoner",), kl_limit=1e9), samples, step=0)
        assert "accepted_fraction" in update.accumulator.means()

    def test_an_update_without_any_advantage_is_taken_back_and_no_rollback(self, tmp_path: Path) -> None:
        update = update_of(tmp_path, "--algorithm.entropy_coefficient", "0.1", name="hatrpo")
        before, samples = weights(update), [replace(s, advantages=np.zeros(1)) for s in samples_of(episodes(2))]
        update.run(UpdatePhase(ROLES, kl_limit=1e9), samples, step=0)
        assert update.updated_policies == set(ROLES)
        assert all(all(map(torch.equal, now, before[name])) for name, now in weights(update).items())
        assert not {"accepted_fraction", "rollbacks"} & update.accumulator.means().keys()

    def test_the_surrogate_is_that_of_the_ratio_that_was_learned_from(self, tmp_path: Path) -> None:
        """With what teammates have moved in it."""
        update = update_of(tmp_path)
        samples = [replace(sample, log_factor=0.25) for sample in samples_of(episodes(2))]
        update.old = update.score_current(samples)
        ratios: list[float] = []

        def looking(inputs: LossInputs) -> LossOutput:
            ratios.extend((inputs.log_probs - inputs.old_log_probs).tolist())
            return LossOutput(inputs.log_probs)

        update._compute_gain(samples, looking, update.old)  # type: ignore[arg-type]
        assert ratios == pytest.approx([0.25] * 8)

    def test_the_fraction_that_is_kept_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        update, samples = update_of(tmp_path), samples_of(episodes(2))
        for fraction in (0.25, 0.5, 0.0):
            monkeypatch.setattr(update_module, "backtrack_update", lambda *_, fraction=fraction: fraction)
            update.run(UpdatePhase(ROLES, kl_limit=1.0), samples, step=0)
        means = update.accumulator.means()
        assert (means["accepted_fraction"], means["rollbacks"]) == pytest.approx((0.25, 1 / 3))


@pytest.mark.usefixtures("multiplies_halves")
def test_in_half_precision_a_phase_is_scored_in_one_size_and_from_where_the_step_began(tmp_path: Path) -> None:
    """Also when the policy comes to its turn a second time: what was scored in another size is not compared."""
    update = update_of(tmp_path, "--models.base.dtype", "bfloat16", "--algorithm.minibatches", "2")
    samples, before = samples_of(episodes(4)), {}
    for turn in range(2):
        update.run(UpdatePhase(("actor",)), samples, step=turn)
        assert list(update.packing.sizes) == [id(update.packing.backbones["actor"])]
        before = before or dict(update.old)
    assert before.keys() == update.old.keys()
    assert all(np.array_equal(update.old[key], row) for key, row in before.items())


def test_kl_that_is_paid_in_the_reward_is_not_paid_again_in_the_loss(tmp_path: Path) -> None:
    losses = []
    for coefficient in (0.0, 0.5):
        kl = f"{{ coefficient = {coefficient}, apply_to = 'reward', estimator = 'k1' }}"
        update = update_of(tmp_path, "--algorithm.kl", kl, "--algorithm.epochs", "1")
        samples = samples_of(episodes(2))
        update.fixed = FixedLogProbs(base={s.action.key: np.full(s.action.num_decisions, -3.0) for s in samples})
        update.run(UpdatePhase(ROLES), samples, step=0)
        losses.append(update.accumulator.means()["policy_loss"])
    assert losses[0] == losses[1]


def test_only_the_widths_that_an_objective_has_are_scaled() -> None:
    plain, higher = PPO(clip=0.2), PPO(clip=0.2, clip_high=0.3)
    assert plain.with_clip_scale(1.0) == plain
    assert plain.with_clip_scale(0.5) == PPO(clip=0.1)
    assert higher.with_clip_scale(0.5) == PPO(clip=0.1, clip_high=0.15)
    assert CISPO().with_clip_scale(0.5) == CISPO()
    assert (plain.clip_width, higher.clip_width, CISPO().clip_width) == (0.2, 0.2, 0.0)
    assert (plain, higher) == (PPO(clip=0.2), PPO(clip=0.2, clip_high=0.3))


def test_scores_of_now_are_the_policies_as_they_are(tmp_path: Path) -> None:
    update, samples = update_of(tmp_path), samples_of(episodes(2))
    before = update.score_current(samples)
    optimizer: PolicyOptimizer = update.optimizers["actor"]
    with torch.no_grad():
        for parameter in optimizer.parameters.values():
            parameter.mul_(1.5)
    after = update.score_current(samples)
    for sample in samples:
        same = np.array_equal(before[sample.action.key], after[sample.action.key])
        assert same == (sample.action.agent == "reasoner")
