"""Whole models in half precision learn as master weights in float32, of which they compute with the rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from marft.common.token_data import GrammarMasks
from marft.config import RunSettings
from marft.config.algorithm import OptimizerSettings
from marft.config.interfaces.schedule import Progress
from marft.models import half_precision, log_probs
from marft.models.dtensors import full_tensor
from marft.models.half_precision import MasterWeights
from marft.models.log_probs import LogitTransform, OutputHead, PackedMasks, score_tokens
from marft.models.policy_registry import PolicyRegistry
from marft.runs.run_folder import RunFolder
from marft.trainer.learner import Learner
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.ranks.group import RankGroup
from marft.trainer.ranks.rank_worker import shard_models
from marft.trainer.train import train
from tests.helpers import settings
from tests.learners import episodes, recipe
from tests.marft.runs.test_resume import StopAfter
from tests.nights import BY_NIGHT, NIGHT
from tests.ranked import together
from tests.runs import finished

FULL = ("--policies.actor.train", "full", "--policies.reasoner.train", "full")
SMOOTH = ("--algorithm.critic.epsilon", "1e-4", "--algorithm.optimizer.epsilon", "1e-4")
HALVES = {"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": True}


def half(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.bfloat16))


class TestMasters:
    def test_gradients_add_up_in_float32(self) -> None:
        weight = half(1.0)
        masters = MasterWeights({"w": weight})
        for _ in range(1000):
            (weight * 1e-3).sum().backward()
        assert weight.grad is None
        grad = masters.parameters["w"].grad
        assert grad is not None
        assert grad.dtype == torch.float32
        torch.testing.assert_close(grad, torch.tensor([1.0]), rtol=2e-3, atol=0)  # in bfloat16 it would stop at 0.25

    def test_steps_that_half_precision_cannot_tell_apart_add_up(self) -> None:
        weight = half(1.0)
        masters = MasterWeights({"w": weight})
        for step in range(100):
            with torch.no_grad():
                masters.parameters["w"].sub_(1e-4)
            masters.copy_to_model()
            assert step or weight.item() == 1.0
        assert weight.item() == pytest.approx(0.99, abs=2**-9)

    def test_what_is_taken_is_kept_exactly(self) -> None:
        weight = half(1.0)
        masters = MasterWeights({"w": weight})
        masters.load_weights({"w": torch.tensor([0.3])})
        assert masters.parameters["w"].item() == torch.tensor(0.3).item()
        assert weight.item() == torch.tensor(0.3).bfloat16().item()

    def test_they_are_part_of_what_an_optimizer_remembers(self) -> None:
        def optimizer(masters: MasterWeights | None) -> PolicyOptimizer:
            parameters = masters.parameters if masters else {"w": nn.Parameter(torch.tensor([0.3]))}
            return PolicyOptimizer(parameters, OptimizerSettings(), 0.1, 9, masters)

        weights = half(0.3), half(0.3)
        one, other, none = (
            optimizer(MasterWeights({"w": weights[0]})),
            optimizer(MasterWeights({"w": weights[1]})),
            optimizer(None),
        )
        one.parameters["w"].grad = torch.ones(1)
        one.step()
        assert torch.equal(weights[0], one.parameters["w"].bfloat16())
        for into in (other, none):
            into.load_state({name: tensor.clone() for name, tensor in one.state().items()})
            assert torch.equal(into.parameters["w"], one.parameters["w"])
        assert torch.equal(weights[1], weights[0])
        assert set(none.state()) == {"w.exp_avg", "w.exp_avg_sq", "w.step"}
        assert set(one.state()) == set(other.state()) == {*none.state(), "w.master"}

    def test_what_an_optimizer_writes_to_them_is_rounded(self) -> None:
        weight = half(0.5)
        masters = MasterWeights({"w": weight})
        optimizer = PolicyOptimizer(masters.parameters, OptimizerSettings(), 0.1, 9, masters)
        before = optimizer.snapshot()
        masters.parameters["w"].grad = torch.ones(1)
        optimizer.step()
        after = optimizer.snapshot()
        assert weight.item() != 0.5
        optimizer.interpolate(before, after, 0.25)
        assert weight.item() == pytest.approx(0.75 * 0.5 + 0.25 * float(after.parameters["w"]), abs=2**-9)
        optimizer.restore(before)
        assert weight.item() == 0.5


@pytest.mark.parametrize("chunk", [2**22, 2**9], ids=["one chunk", "many chunks"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [LogitTransform(), LogitTransform(0.5, 3.0)], ids=["plain", "capped"])
@pytest.mark.parametrize("masks", [False, True])
def test_a_half_precision_head_that_learns(
    chunk: int, bias: bool, shape: LogitTransform, masks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores and gradients are those of its float32 copy; the head's is rounded once, however many chunks there are."""
    monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(log_probs, "MIN_CHUNK_ROWS", 4)
    torch.manual_seed(0)
    count, size, width = 37, 64, 16
    hidden, weight = torch.randn(count, width).bfloat16(), torch.randn(size, width).bfloat16()
    added = torch.randn(size).bfloat16() if bias else None
    targets, temperatures = torch.arange(count), torch.linspace(0.5, 1.5, count)
    packed = None
    if masks:
        bits = np.packbits(np.arange(size) < 50, bitorder="little").tobytes()
        some = GrammarMasks.from_masks(list(range(0, count, 2)), [bits] * len(range(0, count, 2)))
        packed = PackedMasks.from_parts([(some, some.mask_indices(count))], torch.device("cpu"))
    scores, grads = [], []
    for dtype in (torch.bfloat16, torch.float32):
        leaves = [t.to(dtype).clone().requires_grad_() for t in (hidden, weight, *([added] if bias else []))]
        head = OutputHead(leaves[1], leaves[2] if bias else None, shape)
        found = score_tokens(leaves[0], head, targets, temperatures, entropy_gradient=True, masks=packed)
        (found.log_probs * torch.linspace(-1, 2, count) + 0.3 * found.entropies).sum().backward()
        scores.append([part.detach() for part in found])
        grads.append([leaf.grad.float() for leaf in leaves if leaf.grad is not None])
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-5)
    assert len(grads[0]) == 2 + bias
    torch.testing.assert_close(*grads, rtol=2**-8, atol=1e-4)


def test_entropies_without_gradient_give_a_half_precision_head_none() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 8).bfloat16(), torch.randn(12, 8).bfloat16().requires_grad_()
    scores = score_tokens(hidden, OutputHead(weight), torch.arange(5), None)
    assert scores.log_probs.requires_grad
    assert not scores.entropies.requires_grad


@pytest.mark.usefixtures("multiplies_halves")
class TestPolicies:
    def test_a_policy_begins_as_its_base_and_needs_no_other_reference(self, tmp_path: Path) -> None:
        models = PolicyRegistry(recipe(tmp_path, "marft", *FULL, dtype="bfloat16"))
        actor = models.policies["actor"]
        assert actor.reference is models.base_models["base"]
        assert not models.float32_bases
        assert not actor.master_weights, "nobody learns yet"
        assert all(parameter.dtype == torch.float32 for parameter in actor.parameters().values())
        assert actor.master_weights
        assert actor.backbone.head.weight.dtype == torch.bfloat16
        assert actor.backbone is not models.policies["reasoner"].backbone

    @BY_NIGHT
    def test_a_step_is_about_that_of_float32(self, tmp_path: Path) -> None:
        found = {}
        for dtype in ("bfloat16", "float32"):
            learner = Learner(
                run := recipe(tmp_path, "marft", *FULL, *SMOOTH, dtype=dtype), models := PolicyRegistry(run)
            )
            before = {n: p.detach().clone() for n, p in models.policies["actor"].parameters().items()}
            metrics = learner.learn(episodes(), Progress(0, 0))
            moved = {n: p.detach() - before[n] for n, p in models.policies["actor"].parameters().items()}
            found[dtype] = metrics, torch.cat([m.flatten() for m in moved.values()])
        (half_metrics, half_moved), (metrics, moved) = found["bfloat16"], found["float32"]
        for name in ("gradient_norm", "entropy"):
            assert half_metrics[name] == pytest.approx(metrics[name], rel=0.1, abs=0.02)
        assert float(torch.cosine_similarity(half_moved, moved, dim=0)) > 0.9

    @BY_NIGHT
    def test_gradients_do_not_depend_on_micro_batches(self, tmp_path: Path) -> None:
        norms = []
        for tokens in ("150", "100000"):
            run = recipe(tmp_path, "marft", *FULL, "--training.tokens_per_micro_batch", tokens, dtype="bfloat16")
            norms.append(Learner(run, PolicyRegistry(run)).learn(episodes(), Progress(0, 0))["gradient_norm"])
        assert norms[0] == pytest.approx(norms[1], rel=2e-2)

    def test_what_is_not_finite_is_undone_and_masters_are_what_they_were(self, tmp_path: Path) -> None:
        from marft.trainer.non_finite_guard import Snapshot

        run = recipe(tmp_path, "marft", *FULL, dtype="bfloat16")
        learner = Learner(run, models := PolicyRegistry(run))
        kept = Snapshot(learner)
        kept.take()
        said = self._said(models)
        learner.learn(episodes(), Progress(0, 0))
        assert not torch.equal(self._said(models), said)
        kept.restore()
        assert torch.equal(self._said(models), said)

    @staticmethod
    @torch.no_grad()
    def _said(models: PolicyRegistry) -> Tensor:
        from marft.models.packed_rows import PackedRows

        backbone = models.policies["actor"].backbone
        return backbone.hidden_states(
            PackedRows.from_rows([np.arange(3, 30, dtype=np.int32)], [None], torch.device("cpu"))
        )

    @pytest.mark.slow
    @BY_NIGHT
    def test_a_run_goes_on_to_the_bit(self, tmp_path: Path) -> None:
        changes = (
            *FULL,
            "--models.base.dtype",
            "bfloat16",
            "--training.steps",
            "2",
            "--algorithm.entropy_coefficient",
            "0.1",
        )
        _, straight = finished(tmp_path / "straight", *changes)
        folder = RunFolder.create(run := settings("tiny", tmp_path / "stopped", *changes))
        train(run, folder, callbacks=[StopAfter(1)])
        train(run, RunFolder.open(folder.path), resume=True)
        for name in ("policies/actor/model.safetensors", "optimizer.safetensors"):
            mine, theirs = (load_file(it.checkpoints / "step_000002" / name) for it in (folder, straight))
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
        saved = load_file(straight.checkpoints / "step_000002/policies/actor/model.safetensors")
        state = load_file(straight.checkpoints / "step_000002/optimizer.safetensors")
        assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
        masters = {key.removeprefix("policies/actor/"): t for key, t in state.items() if key.endswith(".master")}
        for name, tensor in masters.items():
            if name.startswith("policies/"):
                continue
            assert torch.equal(tensor.bfloat16(), saved[name.removesuffix(".master")])
        assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in masters.values())


def of_ranks(ranks: RankGroup, run: RunSettings, parts: bool) -> Any:
    """What one step makes of the weights, and what is remembered, on each of several ranks."""
    half_precision.torch.cpu.get_capabilities = lambda: HALVES  # type: ignore[assignment]
    models = PolicyRegistry(run, keep_on_cpu=parts and ranks.rank > 0)
    if parts:
        shard_models(models, ranks)
    learner = Learner(run, models, ranks)
    metrics = learner.learn(episodes(), Progress(0, 0))
    state = learner.optimizer_state()
    models.gather_weights(keep=ranks.rank == 0, to_cpu=True)
    saved = models.policies["actor"].backbone.weights() if ranks.rank == 0 and parts else {}
    masters = {name: full_tensor(p.detach()).clone() for name, p in models.policies["actor"].parameters().items()}
    return metrics, masters, {name: tensor.clone() for name, tensor in saved.items()}, sorted(state)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="processes: make nightly")
@pytest.mark.parametrize("parts", [True, False], ids=["in parts", "whole"])
def test_ranks_learn_what_one_does(parts: bool, tmp_path: Path, multiplies_halves: None) -> None:
    run = recipe(tmp_path, "marft", *FULL, *SMOOTH, dtype="bfloat16")
    ((first, second),) = together(2, [("tests.marft.models.test_masters:of_ranks", (run, parts))], tmp_path)
    learner = Learner(run, models := PolicyRegistry(run))
    before = {name: p.detach().clone() for name, p in models.policies["actor"].parameters().items()}
    metrics = learner.learn(episodes(), Progress(0, 0))
    alone = models.policies["actor"].parameters()
    assert first[1].keys() == alone.keys()
    assert all(torch.equal(first[1][name], second[1][name]) for name in alone), "ranks have what ranks have"
    assert first[0]["gradient_norm"] == pytest.approx(metrics["gradient_norm"], rel=1e-2)
    moved = [torch.cat([(now[n].detach() - before[n]).flatten() for n in alone]) for now in (alone, first[1])]
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.99
    assert first[3] == second[3] == sorted(learner.optimizer_state())
    for name, tensor in first[2].items():
        if name in alone:
            assert torch.equal(tensor, first[1][name].bfloat16()), "what is saved is the masters' rounding"
