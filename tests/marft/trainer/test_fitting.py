"""How the critic is made and fitted: its parts' seeds and rates, its minibatches, and what it reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from marft.common import seeds
from marft.config.algorithm import CriticSettings
from marft.models.backbone import Backbone
from marft.models.critic import ValueHead
from marft.trainer.critic import (
    LORA_TARGETS,
    Critic,
    CriticBody,
    CriticInput,
    ValueNormalizer,
    compute_explained_variance,
    read_features,
)
from tests.episodes import make_action
from tests.helpers import lengths_read
from tests.marft.trainer.test_critic import critic, episode

BATCH = [episode(make_action("a", prompt=(5, n))) for n in range(3, 11)]
RETURNS = [np.array([float(n % 3)]) for n in range(8)]


class TestTheParts:
    def test_a_head_begins_from_the_random_stream_of_its_own_name(self, backbone: Backbone) -> None:
        for seed in (0, 7):
            mine = Critic(
                CriticSettings(heads="agent", hidden_size=16), "action", {"a": CriticBody("base", backbone), "b": CriticBody("base", backbone)}, [("a", "a"), ("b", "b")], seed=seed, tokens_per_batch=99,
            )  # fmt: skip
            for name, head in mine.heads.items():
                right = ValueHead(backbone.head.in_features, 16, seeds.derive_seed(seed, "critic", name))
                assert all(map(torch.equal, head.parameters(), right.parameters()))
        first = [mine.heads[name].layers[0].weight for name in ("base/a", "base/b")]
        assert not torch.equal(*first)  # type: ignore[arg-type]

    def test_heads_and_bodies_have_rates_of_their_own_and_one_epsilon(self, backbone: Backbone) -> None:
        mine = critic(backbone, body="lora", learning_rate=0.03, lora_learning_rate=0.002, epsilon=1e-4)
        assert [(group["lr"], group["eps"]) for group in mine.optimizer.param_groups] == [(0.03, 1e-4), (0.002, 1e-4)]
        heads, body = (group["params"] for group in mine.optimizer.param_groups)
        assert {id(p) for p in heads} == {id(p) for head in mine.heads.values() for p in head.parameters()}
        assert {id(p) for p in body} == {id(p) for name, p in mine.parameters().items() if "lora_" in name}
        assert [group["lr"] for group in critic(backbone, learning_rate=0.03).optimizer.param_groups] == [0.03]

    def test_a_body_of_its_own_is_scaled_by_2_and_has_an_adapter_nobody_else_has(self, backbone: Backbone) -> None:
        critic(backbone, body="lora", lora_rank=3)
        found = backbone.adapters("critic of base")
        assert {name.rpartition(".")[2] for name in found} == set(LORA_TARGETS) == {"q_proj", "v_proj"}
        assert {(len(adapter.a), adapter.scale) for adapter in found.values()} == {(3, 2.0)}

    def test_statistics_are_there_only_where_values_are_normalised(self, backbone: Backbone) -> None:
        assert critic(backbone).normalizers == {}
        kept = critic(backbone, normalize_values=True, value_decay=0.5).normalizers
        assert {name: normaliser.decay for name, normaliser in kept.items()} == {"base": 0.5}

    def test_what_a_checkpoint_keeps_is_named_after_its_part(self, backbone: Backbone) -> None:
        names = set(critic(backbone, heads="agent", normalize_values=True, body="lora").parameters())
        assert {"base/a.layers.0.weight", "base/b.layers.4.bias", "base/a.sums", "base/b.sums"} <= names
        assert (
            sum(name.startswith("base.") and name.endswith(("lora_A", "lora_B")) for name in names) == len(names) - 14
        )


class TestMinibatches:
    def test_hold_every_decision_once_in_an_order_of_the_step_and_epoch(self, backbone: Backbone) -> None:
        mine = critic(backbone, minibatches=3)
        orders = set()
        for step, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
            parts = mine._minibatches(7, step, epoch)
            assert [len(part) for part in parts] == [3, 2, 2]
            order = seeds.generator(0, "critic minibatches", step, epoch).permutation(7).tolist()
            assert np.concatenate(parts).tolist() == order
            orders.add(tuple(order))
        assert len(orders) == 4

    def test_are_none_of_them_empty(self, backbone: Backbone) -> None:
        assert [len(part) for part in critic(backbone, minibatches=5)._minibatches(2, 0, 0)] == [1, 1]


class TestAnUpdate:
    @staticmethod
    def scripted(backbone: Backbone, monkeypatch: pytest.MonkeyPatch, norms: Sequence[float]) -> dict[str, float]:
        """Two epochs of two minibatches, whose n-th loss is n and whose gradient is as large as told."""
        mine = critic(backbone, epochs=2, minibatches=2, max_gradient_norm=1e6)
        bias = next(p for p in mine.parameters().values() if p.numel() == 1)
        calls: list[float] = []

        def backward(part: np.ndarray, old: np.ndarray, goals: np.ndarray) -> list[Tensor]:
            assert (len(part), len(old), len(goals)) == (4, 8, 8)
            assert all(p.grad is None for p in mine.parameters().values())  # nothing is left of the one before
            bias.grad = torch.full_like(bias, norms[len(calls)])
            calls.append(len(calls) + 1.0)
            return [torch.tensor(calls[-1])]

        values = mine.evaluate(BATCH)
        monkeypatch.setattr(mine, "_backward", backward)
        metrics = mine.update(values, RETURNS, step=0)
        assert len(calls) == 4
        flat, targets = np.concatenate(values.actions), np.concatenate(RETURNS)
        assert metrics["critic/value"] == pytest.approx(flat.mean())
        assert metrics["critic/explained_variance"] == pytest.approx(1 - np.var(targets - flat) / np.var(targets))
        return metrics

    def test_reports_means_over_its_minibatches(self, backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
        metrics = self.scripted(backbone, monkeypatch, (1.0, 2.0, 3.0, 6.0))
        assert metrics["critic/loss"] == 2.5
        assert metrics["critic/gradient_norm"] == pytest.approx(3.0)
        assert metrics["critic/skipped_updates"] == 0.0

    def test_reports_the_share_that_was_skipped(self, backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
        metrics = self.scripted(backbone, monkeypatch, (1.0, math.inf, 3.0, 6.0))
        assert metrics["critic/skipped_updates"] == 0.25

    def test_of_nothing_reports_nothing(self, backbone: Backbone) -> None:
        mine = critic(backbone)
        values = mine.evaluate([episode(make_action("a"))])
        mine._decisions = []
        metrics = mine.update(type(values)([np.empty(0)]), [np.empty(0)], step=0)
        assert metrics.pop("critic/skipped_updates") == 0.0
        assert len(metrics) == 4
        assert all(map(math.isnan, metrics.values()))

    def test_reports_values_in_the_units_of_returns_and_leaves_both_as_they_are(self, backbone: Backbone) -> None:
        mine = critic(backbone, normalize_values=True)
        returns = [np.array([1000.0 + n]) for n in range(8)]
        mine.update(mine.evaluate(BATCH), returns, step=0)
        values = mine.evaluate(BATCH)
        flat, before = np.concatenate(values.actions), np.concatenate(returns)
        metrics = mine.update(values, returns, step=1)
        assert metrics["critic/value"] == pytest.approx(flat.mean())
        assert flat.mean() > 900
        assert metrics["critic/explained_variance"] == pytest.approx(compute_explained_variance(flat, before))
        assert np.concatenate(returns).tolist() == before.tolist()

    @pytest.mark.parametrize(("loss", "delta"), [("huber", 0.25), ("squared", None)])
    def test_the_loss_is_a_mean_over_decisions_and_its_gradient_is_weighed(
        self, loss: str, delta: float | None, backbone: Backbone
    ) -> None:
        norms = []
        for coefficient in (1.0, 0.5):
            torch.manual_seed(0)
            mine = critic(
                backbone,
                loss=loss,
                huber_delta=delta or 1.0,
                coefficient=coefficient,
                value_clip=0.0,
                max_gradient_norm=1e6,
            )
            values = mine.evaluate(BATCH)
            errors = [abs(float(v[0] - r[0])) for v, r in zip(values.actions, RETURNS, strict=True)]
            right = [0.5 * e**2 if delta is None or e <= delta else delta * (e - 0.5 * delta) for e in errors]
            metrics = mine.update(values, RETURNS, step=0)
            assert metrics["critic/loss"] == pytest.approx(sum(right) / len(right), rel=1e-5)
            norms.append(metrics["critic/gradient_norm"])
        assert norms[0] == pytest.approx(2 * norms[1], rel=1e-5)


def test_readings_are_packed_longest_first_as_many_as_fit(backbone: Backbone) -> None:
    lengths = (3, 4, 2, 5)
    reads = [
        CriticInput(np.arange(n, n + length, dtype=np.int32), np.array([length - 1]))
        for n, length in enumerate(lengths, 5)
    ]
    alone = torch.cat([read_features(backbone, [read], 99, None) for read in reads])
    forwarded = lengths_read(backbone)
    torch.testing.assert_close(read_features(backbone, reads, 7, None), alone, rtol=1e-5, atol=1e-5)
    assert forwarded == [5, 7, 2]


def test_positions_that_several_readings_want_are_read_for_each(backbone: Backbone) -> None:
    ids = np.array([4, 9, 6, 7], np.int32)
    whole = read_features(backbone, [CriticInput(ids, np.arange(4))], 99, None)
    wanted = ([3], [0, 2], [2, 3])
    found = read_features(backbone, [CriticInput(ids, np.array(some)) for some in wanted], 99, None)
    torch.testing.assert_close(found, torch.cat([whole[some] for some in wanted]))


def test_a_head_of_somebody_who_did_not_act_keeps_no_other_from_reading(backbone: Backbone) -> None:
    mine = critic(backbone, heads="agent")
    batch = [episode(make_action("b", prompt=(5, n))) for n in (3, 4)]
    assert all(value[0] != 0.0 for value in mine.evaluate(batch).actions)
    assert [decisions.head for decisions in mine._decisions] == ["base/b"]


def test_returns_that_hardly_differ_are_explained_and_equal_ones_are_not() -> None:
    near = np.array([1e-4, -1e-4])
    assert compute_explained_variance(near, near) == 1.0
    assert compute_explained_variance(near / 2, near) == pytest.approx(0.75)
    assert math.isnan(compute_explained_variance(near, np.array([1e-7, -1e-7])))
    assert math.isnan(compute_explained_variance(np.empty(0), np.empty(0)))


class TestRunningStatistics:
    def test_of_targets_that_are_all_equal_the_deviation_is_a_tenth(self) -> None:
        normaliser = ValueNormalizer(0.5)
        normaliser.update(np.array([3.0, 3.0]))
        assert normaliser.normalize(np.array([3.1, 2.8])).tolist() == pytest.approx([1.0, -2.0])

    def test_before_the_first_batch_and_after_an_empty_one_values_are_what_the_head_says(self) -> None:
        normaliser = ValueNormalizer(0.5)
        normaliser.update(np.empty(0))
        assert normaliser.sums.tolist() == [0.0, 0.0, 0.0]
        assert normaliser.normalize(np.array([3.5, -2.0])).tolist() == [3.5, -2.0]
        assert normaliser.denormalize(np.array([3.5, -2.0])).tolist() == [3.5, -2.0]

    def test_are_exact_and_have_no_gradient(self) -> None:
        """Of a million, the deviation of 1 is still there."""
        normaliser = ValueNormalizer(0.0)
        normaliser.update(np.array([1e6 - 1.0, 1e6 + 1.0]))
        assert normaliser.normalize(np.array([1e6 + 2.0])).tolist() == pytest.approx([2.0], rel=1e-3)
        assert (normaliser.sums.dtype, normaliser.sums.requires_grad) == (torch.float64, False)
