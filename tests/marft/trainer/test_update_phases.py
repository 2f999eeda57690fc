"""What an update shares with other ranks, measures, and compares: limits, idle passes, scores and comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from marft.common.errors import UserError
from marft.common.token_data import TokenSource
from marft.common.types import Sample
from marft.config.interfaces.credit import Comparison
from marft.config.interfaces.schedule import UpdatePhase
from marft.models.backbone import Backbone
from marft.trainer import update as update_module
from marft.trainer.batching import BatchCounts, IdleBatch, Packing, input_length
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.objectives.dpo import DPO
from marft.trainer.objectives.ppo import PPO
from marft.trainer.preferences import PreferenceBatch, ReferencePolicy
from marft.trainer.ranks.interface import SingleRank
from marft.trainer.scoring import score_batch
from marft.trainer.update import PolicyUpdater, UpdateSetup
from tests.episodes import make_action
from tests.marft.trainer.test_updates import (
    POLICIES,
    Recording,
    algorithm,
    begun,
    double,
    optimizers,
    packing,
    random_samples,
)

__all__ = ["double"]  # a fixture


class TestLimits:
    def test_a_budget_scales_back_from_the_policies_as_they_were_before_the_phase(
        self, double: Backbone, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of the phase that have an optimizer here; others lie on other ranks or did not act."""
        told = []

        def scale(optimizers: object, before: Mapping[str, object], measure: object, budget: float) -> Any:
            told.append((set(before), budget))
            return 1.0, 0.0

        monkeypatch.setattr(update_module, "scale_to_budget", scale)
        samples = random_samples(double, "action")
        update = begun(samples, algorithm(), optimizers(double), packing(double))
        update.run(UpdatePhase((*POLICIES, "elsewhere")), samples, step=0, budget=0.25)
        assert told == [(set(POLICIES), 0.25)]

    def test_comparisons_have_no_surrogate_that_an_update_could_be_accepted_by(self, double: Backbone) -> None:
        update, samples = comparing(double)
        with pytest.raises(UserError, match="a schedule's kl_limit accepts updates by what a surrogate gains"):
            update.run(UpdatePhase(POLICIES, kl_limit=0.1), samples, step=0)


class Gathering(SingleRank):
    """One that keeps what it gathers, beside peers that have as many micro-batches as is said, and 1 of all else."""

    def __init__(self, *peers: int, has_bases: bool = True) -> None:
        self.peers, self.has_bases = peers, has_bases
        self.gathered: list[type] = []

    def gather(self, value: Any) -> list[Any]:
        self.gathered.append(type(value))
        return [value, *self.peers] if isinstance(value, int) else [value, np.ones_like(value)]

    def on(self, base: str) -> Any:
        return self if self.has_bases else None


class TestSeveralMicroBatches:
    @staticmethod
    def run(backbone: Backbone, ranks: Gathering, tokens: int = 10**6, **changes: object) -> dict[str, Recording]:
        samples, made = random_samples(backbone, "action", drift=2.0), optimizers(backbone)
        update = begun(samples, algorithm(**changes), made, packing(backbone, tokens=tokens))
        update.ranks = ranks
        update.run(UpdatePhase(POLICIES), samples, step=0)
        return made

    @pytest.mark.parametrize("peers", [(), (1,), (2,), (0, 2)])
    def test_a_kl_is_known_before_the_backward_pass_only_where_every_rank_has_one(
        self, peers: tuple[int, ...], double: Backbone
    ) -> None:
        made = self.run(double, Gathering(*peers), kl_stop=0.01)
        assert all(not hasattr(optimizer, "gradient") for optimizer in made.values()), "it stops in any case"
        early = all(p.grad is None for optimizer in made.values() for p in optimizer.parameters.values())
        assert early == (2 not in peers)

    def test_a_kl_is_that_of_all_of_them(self, double: Backbone) -> None:
        """The first one alone, which is the shortest, would stop it."""
        samples = [s for s in random_samples(double, "action", drift=0.0) if s.action.policy == "one"]
        short, *_, long = sorted(samples, key=input_length)
        moved = replace(short, action=replace(short.action, log_probs=short.action.log_probs - 2.0))
        assert math.exp(2.0) - 1.0 - 2.0 > 4.0, "nats a token, of the first"
        made = optimizers(double)
        update = begun([moved, long], algorithm(kl_stop=4.0), made, packing(double, tokens=1))
        update.run(UpdatePhase(("one",)), [moved, long], step=0)
        assert made["one"].gradient

    @pytest.mark.parametrize("kl_stop", [0.0, 1e6])
    def test_a_rank_that_has_none_meets_the_others_as_often(self, kl_stop: float, double: Backbone) -> None:
        busy, free = Gathering(1), Gathering(1, has_bases=False)
        for ranks in (busy, free):
            self.run(double, ranks, kl_stop=kl_stop)
        assert busy.gathered == free.gathered != []

    @pytest.mark.parametrize("tokens", [1, 10**6])
    @pytest.mark.parametrize("kl_stop", [0.01, 1e6])
    def test_scores_from_before_the_update_are_shared_with_other_ranks_also_where_it_stops(
        self, tokens: int, kl_stop: float, double: Backbone, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shared: list[int] = []
        monkeypatch.setattr(PolicyUpdater, "_share_old_scores", lambda _, samples: shared.append(len(samples)))
        self.run(double, Gathering(), tokens, kl_stop=kl_stop)
        assert shared == [7]

    def test_idle_ones_run_backward_too(self, double: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
        weight = torch.ones((), requires_grad=True)
        monkeypatch.setattr(IdleBatch, "forward", lambda _: 0.0 * weight)
        monkeypatch.setattr(
            Packing, "pad_to_ranks", lambda self, batches, *_: [*batches, IdleBatch(double, "one")]
        )  # fmt: skip
        self.run(double, Gathering())
        assert weight.grad is not None


class TestWhatIsMeasured:
    def test_entropies_are_those_of_each_action_when_it_was_first_scored(self, double: Backbone) -> None:
        samples, pack = random_samples(double, "action"), packing(double)
        update = begun(samples, algorithm(epochs=2), optimizers(double), pack)
        update.run(UpdatePhase(POLICIES), samples, step=0)
        (batch,) = pack.micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))
        expected = batch.split_by_action(score_batch(batch).entropies.numpy())
        found = update.accumulator.entropies
        assert found.keys() == expected.keys()
        assert all(row == pytest.approx(expected[key]) for key, row in found.items())

    def test_the_weight_of_teammate_text_is_where_it_is_trained(self, double: Backbone) -> None:
        marks = (int(TokenSource.TEAMMATE), int(TokenSource.SAMPLED))
        action = replace(make_action("one", marks=marks), teammate_log_probs=np.full(1, -0.7, np.float32))
        samples, pack = [Sample(action, 1.0, np.ones(1))], replace(packing(double), teammate_text=True)
        update = begun(samples, algorithm(teammate_text={"coefficient": 1.0}), optimizers(double), pack)
        update.run(UpdatePhase(POLICIES), samples, step=0)
        assert update.accumulator.means()["teammate_weight"] > 0

    def test_ranks_that_report_the_same_norm_count_it_once_together(self, double: Backbone) -> None:
        class OneOfTwo(SingleRank):
            count = 2

        made = optimizers(double)
        update = begun([], algorithm(), made, packing(double))
        update.ranks = OneOfTwo()
        update._step_optimizers(POLICIES, {name: np.ones(1) for name in POLICIES})
        assert update.accumulator.total("gradient_norm") == 0.5 + 0.5
        assert update.accumulator.total("policies/one/gradient_norm") == 0.5
        assert update.accumulator.means()["gradient_norm"] == 1.0
        assert update.accumulator.means()["skipped_updates"] == 0.0
        update._step_optimizers(POLICIES, {"one": np.array([math.inf]), "two": np.ones(1)})
        assert update.accumulator.total("skipped_updates") == 0.5
        assert update.accumulator.means()["skipped_updates"] == 1 / 4


class TestScoresBeforeAnUpdate:
    @pytest.mark.parametrize("exact", [False, True])
    def test_are_made_again_unless_those_from_before_are_exact(
        self, exact: bool, double: Backbone, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        samples, asked = random_samples(double, "action"), list[int]()

        def score(packing: Packing, samples: Sequence[Sample], ranks: object) -> dict[Any, Any]:
            asked.append(len(samples))
            return {}

        known = {sample.action.key: np.zeros(sample.action.num_decisions) for sample in samples[:3]}
        monkeypatch.setattr(update_module, "score_actions", score)
        setup = UpdateSetup(algorithm(), PPO(), {}, packing(double))
        PolicyUpdater(setup, FixedLogProbs(known, exact=exact))._score_old(samples)
        assert asked == [len(samples) - 3 if exact else len(samples)]

    @pytest.mark.parametrize(
        ("changes", "limit", "checked"),
        [
            ({}, 0.0, False), ({"epochs": 2}, 0.0, True), ({}, 0.5, True), ({"team_kl": 0.5}, 0.0, True),
            ({"schedule": {"name": "sequential"}}, 0.0, True),
        ],
    )  # fmt: skip
    def test_are_compared_with_another_packing_where_a_later_score_is_compared_with_them(
        self, changes: dict[str, Any], limit: float, checked: bool, double: Backbone
    ) -> None:
        samples, setup = random_samples(double, "action"), UpdateSetup(algorithm(**changes), PPO(), {}, packing(double))
        phase = UpdatePhase(POLICIES, kl_limit=limit)
        for check, moved in ((True, set[str]()), (True, set(POLICIES)), (False, set())):
            update = PolicyUpdater(setup, FixedLogProbs(), check_packing=check)
            update.updated_policies |= moved
            assert bool(update._select_for_check(phase, samples)) == (checked and check and not moved)


def comparing(backbone: Backbone, **changes: object) -> tuple[PolicyUpdater, list[Sample]]:
    """An update by two comparisons between attempts of policy one, and samples of both policies."""
    samples = random_samples(backbone, "action")
    keys = [(sample.action.key,) for sample in samples if sample.action.policy == "one"]
    pairs = PreferenceBatch.from_samples([Comparison(keys[0], keys[1]), Comparison(keys[2], keys[3])], samples)
    reference = SimpleNamespace(scores=lambda asked, score, ranks: {s.action.key: "its score" for s in asked})
    setup = UpdateSetup(
        algorithm(**changes), DPO(), optimizers(backbone), packing(backbone), seed=5,
        reference=cast(ReferencePolicy, reference),
    )  # fmt: skip
    return PolicyUpdater(setup, FixedLogProbs(), pairs), samples


class TestComparisons:
    def test_are_weighed_against_what_the_reference_says_of_all_of_them(
        self, double: Backbone, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[Any] = []

        def weigh(self: PreferenceBatch, objective: object, current: object, reference: object, *_: object) -> Any:
            told.append(reference)
            return self.flatten()

        monkeypatch.setattr(PreferenceBatch, "compute_coefficients", weigh)
        update, samples = comparing(double, epochs=2, minibatches=2)
        update.run(UpdatePhase(POLICIES), samples, step=0)
        assert update.preferences is not None
        assert told == [dict.fromkeys(update.preferences.samples, "its score")] * 4

    def test_are_split_anew_for_each_seed_step_and_epoch(
        self, double: Backbone, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[tuple[int, ...]] = []
        split = PreferenceBatch.split

        def watched(self: PreferenceBatch, count: int, seed: int, step: int, epoch: int) -> list[PreferenceBatch]:
            told.append((count, seed, step, epoch))
            return split(self, count, seed, step, epoch)

        monkeypatch.setattr(PreferenceBatch, "split", watched)
        monkeypatch.setattr(PolicyUpdater, "_run_epochs", lambda *_: None)
        update, samples = comparing(double, epochs=2, minibatches=3)
        update.run(UpdatePhase(POLICIES), samples, step=7)
        assert told == [(3, 5, 7, 0), (3, 5, 7, 1)]
