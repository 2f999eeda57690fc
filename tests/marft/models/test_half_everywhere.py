"""In bfloat16 everything does what it does in float32, give or take its rounding: on the CPU, module by module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from marft.agents.streaming import Detokenizer
from marft.common.token_data import GrammarMasks
from marft.common.types import Option, SamplingParams
from marft.config.interfaces.schedule import Progress
from marft.config.models import ModelSettings
from marft.inference.choice_sampling import ChoiceRequest, choose
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.models.backbone import Backbone
from marft.models.half_precision import store_in_half
from marft.models.loader import load_backbone
from marft.models.log_probs import OutputHead, PackedMasks, score_tokens
from marft.models.packed_rows import PackedRows, PrefixTree
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.non_finite_guard import Snapshot, find_non_finite
from tests.learners import begun, episodes, recipe
from tests.nights import some

CPU = torch.device("cpu")
START = np.arange(3, 40, dtype=np.int32)
ROWS = [np.concatenate([START, np.arange(50 + 7 * n, 55 + 9 * n, dtype=np.int32)]) for n in range(4)]
POLICIES = ["one", "one", "two", None]
CLOSE = 0.06  # nats, on average: weights and rows have eight bits
Load = Callable[[torch.dtype], Backbone]


@pytest.fixture(params=["as it is", "held"])
def load(request: pytest.FixtureRequest, random_model: Path) -> Load:
    """A backbone whose adapters say something; a half-precision one as it is multiplied, or held (on an x86 CPU)."""

    def loaded(dtype: torch.dtype) -> Backbone:
        backbone = load_backbone(ModelSettings(path=str(random_model)), CPU, dtype)
        if request.param == "held":
            store_in_half(backbone)
        torch.manual_seed(5)
        for policy in ("one", "two"):
            backbone.add_adapter(policy, 4, 8.0, ("q_proj", "up_proj"), seed=0)
            for adapter in backbone.adapters(policy).values():
                torch.nn.init.normal_(adapter.b, std=0.1)
        return backbone

    return loaded


def log_probs(backbone: Backbone, hidden: Tensor) -> Tensor:
    return backbone.compute_logits(hidden, None).log_softmax(-1)


def likely(one: Tensor, other: Tensor) -> float:
    """How far likely tokens' log-probs are from each other."""
    at = other.topk(8).indices
    return float((one.gather(1, at) - other.gather(1, at)).abs().mean())


@torch.no_grad()
@pytest.mark.parametrize("forward", ["fused", "packed", "own"])
def test_packed_rows(load: Load, forward: str) -> None:
    said = []
    for dtype in (torch.bfloat16, torch.float32):
        backbone = load(dtype)
        if forward != "fused" and len({weight.dtype for weight in backbone.base_weights().values()}) > 1:
            pytest.skip("what is held in half precision is fused")
        for _ in range(("fused", "packed", "own").index(forward)):
            backbone.use_slower_forward()
        said.append(log_probs(backbone, backbone.hidden_states(PackedRows.from_rows(ROWS, POLICIES, CPU))))
    assert all(torch.isfinite(one).all() for one in said)
    assert likely(*said) < CLOSE


@torch.no_grad()
def test_rows_that_share_what_they_begin_with(load: Load) -> None:
    backbone = load(torch.bfloat16)
    forest = PrefixTree.from_rows(ROWS, POLICIES)
    shared = log_probs(backbone, backbone.hidden_states(PackedRows.from_tree(forest, CPU)))
    apart = log_probs(backbone, backbone.hidden_states(PackedRows.from_rows(ROWS, POLICIES, CPU)))
    at = torch.from_numpy(np.concatenate(forest.token_indices))
    assert likely(shared[at], apart) < CLOSE


def test_decoding_says_what_scoring_says(load: Load) -> None:
    backbone = load(torch.bfloat16)
    batch = RunningBatch(backbone, [2], lambda: Detokenizer(lambda ids: " ".join(map(str, ids))), prefix_bytes=2**20)
    rows = [
        DecodeRequest(policy, ids, SamplingParams(max_new_tokens=6), np.linspace(0.1, 0.9, 6, dtype=np.float32))
        for policy, ids in zip(POLICIES, ROWS, strict=True)
    ]
    done: list[RowResult] = batch.admit(rows)
    while len(batch):
        done += batch.step()
    for one in done:
        whole = PackedRows.from_rows([np.concatenate([one.row.prompt, one.tokens])], [one.row.adapter], CPU)
        with torch.no_grad():
            said = log_probs(backbone, backbone.hidden_states(whole))[len(one.row.prompt) - 1 : -1]
        scored = said.gather(1, torch.from_numpy(one.tokens).long()[:, None])[:, 0]
        assert float((scored - torch.from_numpy(one.log_probs)).abs().mean()) < 3 * CLOSE


def test_choices(load: Load) -> None:
    options = [Option(np.arange(60, 62 + n, dtype=np.int32)) for n in range(3)]
    requests = [ChoiceRequest("one", ids, options, SamplingParams(temperature=0.0), 0.5) for ids in ROWS]
    half, whole = (choose(load(dtype), requests) for dtype in (torch.bfloat16, torch.float32))
    for mine, theirs in zip(half, whole, strict=True):
        assert np.exp(mine.log_probs).sum() == pytest.approx(1.0, abs=1e-4)
        assert np.abs(mine.log_probs - theirs.log_probs).mean() < 10 * CLOSE  # sums over the options' tokens


def test_masked_scores_of_a_half_precision_head() -> None:
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(20, 16), torch.randn(64, 16), torch.arange(20)
    bits = np.packbits(np.arange(64) < 40, bitorder="little").tobytes()
    masks = GrammarMasks.from_masks(list(range(0, 20, 2)), [bits] * 10)
    packed = PackedMasks.from_parts([(masks, masks.mask_indices(20))], CPU)
    found = []
    for head in (weight.bfloat16(), weight.bfloat16().float()):
        states = hidden.bfloat16().to(head.dtype).requires_grad_()
        scores = score_tokens(states, OutputHead(head), targets, None, entropy_gradient=True, masks=packed)
        (scores.log_probs.sum() + scores.entropies.sum()).backward()
        found.append([x.detach().float() for x in (*scores, states.grad)])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
class TestLearning:
    @pytest.mark.parametrize(
        "changes",
        some([
            (),
            ("--algorithm.level", "token"),
            ("--training.share_prefixes", "always"),
            ("--algorithm.critic.body", "lora"),
            ("--algorithm.entropy_coefficient", "0.01", "--algorithm.kl", "{ coefficient = 0.1 }"),
            ("--models.base.gradient_checkpointing", "true"),
        ], of=6),
    )  # fmt: skip
    def test_a_step_is_that_of_float32(self, tmp_path: Path, changes: tuple[str, ...]) -> None:
        half, whole = (
            begun(recipe(tmp_path, "marft", *changes, dtype=dtype)).learn(episodes(), Progress(0, 0))
            for dtype in ("bfloat16", "float32")
        )
        assert half.keys() == whole.keys()
        assert half["gradient_norm"] == pytest.approx(whole["gradient_norm"], rel=0.2)
        assert half["entropy"] == pytest.approx(whole["entropy"], rel=0.05)
        assert half["critic/loss"] == pytest.approx(whole["critic/loss"], rel=0.2)

    def test_whole_models_that_are_tuned_stay_float32(self, tmp_path: Path) -> None:
        run = recipe(
            tmp_path, "marft", "--policies.actor.train", "full", "--policies.actor.lora", "{}", dtype="bfloat16"
        )
        models = PolicyRegistry(run)
        assert {p.dtype for p in models.policies["actor"].parameters().values()} == {torch.float32}
        assert models.base_models["base"].layers["model.layers.0.self_attn.q_proj"].base.weight.dtype == torch.bfloat16

    def test_a_step_can_be_undone(self, tmp_path: Path) -> None:
        learner = begun(recipe(tmp_path, "marft", dtype="bfloat16"))
        before = Snapshot(learner)
        before.take()
        first = [p.detach().clone() for one in learner.optimizers.values() for p in one.parameters.values()]
        learner.learn(episodes(), Progress(0, 0))
        assert find_non_finite(learner) == []
        before.restore()
        again = [p for one in learner.optimizers.values() for p in one.parameters.values()]
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
