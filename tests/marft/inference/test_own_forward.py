"""Models with recurrent layers or their own forward: they learn and sample what they would for each row alone."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from inspect import unwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.model_families import build_small_backbone
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.models.lfm2 import modeling_lfm2

from marft.agents.streaming import Detokenizer
from marft.common.callbacks import Callback
from marft.common.types import SamplingParams
from marft.config import parse_recipe
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.models import forward_check
from marft.models.backbone import Backbone
from marft.models.decode_cache import PackedDecodeCache
from marft.models.packed_rows import PackedRows, PrefixTree
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.families import FAMILY, OWN, RECURRENT, random_model
from tests.helpers import recipe

CPU = torch.device("cpu")
ROWS = [(np.arange(1, n + 1) ** 2 * 5 % 96).astype(np.int32) for n in (4, 19, 1, 11, 2)]
POLICIES = ["one", None, "two", "one", "two"]
FAST = ("LFM 2", "Qwen 3.5", "Nemotron-H", "Doge")
NAMES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in (*RECURRENT, *OWN)]


@pytest.fixture(params=NAMES)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    """A model with two policies on it."""
    found = build_small_backbone(FAMILY[request.param])
    assert found.native == (request.param in OWN)
    assert found.recurrent == (request.param in RECURRENT)
    targets = {"q_proj", "out_proj", "in_proj", "o_proj"} & {
        name.rpartition(".")[2] for name, module in found.model.named_modules() if isinstance(module, nn.Linear)
    }
    for policy in ("one", "two"):
        found.add_adapter(policy, 4, 8.0, sorted(targets), seed=0)
        for adapter in found.adapters(policy).values():
            nn.init.normal_(adapter.b, std=0.2)
    return found


def adapter_gradients(backbone: Backbone) -> list[torch.Tensor]:
    adapters = [adapter for policy in ("one", "two") for adapter in backbone.adapters(policy).values()]
    return [half.grad.clone() for adapter in adapters for half in (adapter.a, adapter.b) if half.grad is not None]


def test_rows_of_all_policies_in_one_batch_are_as_each_alone(backbone: Backbone) -> None:
    """Values and gradients; padding at the ends of rows reaches no state."""
    weights = torch.linspace(-1, 1, 32)
    results = []
    for batches in ([(ROWS, POLICIES)], [([row], [policy]) for row, policy in zip(ROWS, POLICIES, strict=True)]):
        backbone.model.zero_grad()
        hidden = torch.cat([backbone.hidden_states(PackedRows.from_rows(*batch, CPU)) for batch in batches])
        (hidden * weights).sum().backward()
        results.append([hidden.detach(), *adapter_gradients(backbone)])
    for together, alone in zip(*results, strict=True):
        scale = alone.abs().max() + 1e-6
        torch.testing.assert_close(together / scale, alone / scale, rtol=0, atol=5e-4)


TREE_ROWS = [
    np.array(row, np.int32)
    for row in ([7], [7, 8], [7, 8, 9, 3], [7, 8, 9, 4, 5], [7, 8, 9, 4, 6, *range(30)], [2, *range(20)])
]


def test_rows_in_a_prefix_tree_are_as_each_alone(backbone: Backbone) -> None:
    """Values, gradients, and states in slots. Rows end inside others and branch within a convolution's width."""
    if not backbone.recurrent or not backbone.supports_trees:
        pytest.skip("no tree for this model")
    policies = ["one"] * 5 + ["two"]
    separate = PackedRows.from_rows(TREE_ROWS, policies, CPU)
    tree = PackedRows.from_tree(PrefixTree.from_rows(TREE_ROWS, policies), CPU, size=80)
    results = []
    for rows in (separate, tree):
        backbone.model.zero_grad()
        hidden = torch.cat([backbone.hidden_states(rows)[places] for places in rows.token_indices()])
        (hidden * torch.linspace(-1, 1, 32)).sum().backward()
        cache = PackedDecodeCache(backbone)
        with torch.no_grad():
            cache.prefill(rows, [[slot, slot + 6] for slot in range(6)])
            decoded = cache.step(torch.arange(12), list(map(len, TREE_ROWS)) * 2, policies * 2)
        results.append([hidden.detach(), decoded, *adapter_gradients(backbone)])
    for alone, together in zip(*results, strict=True):
        scale = alone.abs().max() + 1e-6
        torch.testing.assert_close(together / scale, alone / scale, rtol=0, atol=1e-3)


def test_a_row_in_a_filled_batch_does_not_depend_on_those_beside_it(backbone: Backbone) -> None:
    with torch.no_grad():
        together = backbone.hidden_states(PackedRows.from_rows(ROWS, POLICIES, CPU, size=64))
        alone = backbone.hidden_states(PackedRows.from_rows(ROWS[1:2], POLICIES[1:2], CPU, size=64))
    assert together.shape == alone.shape == (64, 32)
    assert torch.equal(together[4:23], alone[:19])


def test_what_is_sampled_is_what_the_whole_row_says(backbone: Backbone) -> None:
    """Rows of several policies and lengths, equal prompts among them, join and leave at different times."""
    lengths = {0: 5, 1: 9, 2: 2, 3: 7, 4: 6, 5: 3}
    prompts = [*ROWS, ROWS[3]]
    policies = [*POLICIES, "one"]
    batch = RunningBatch(backbone, [95], lambda: Detokenizer(str))
    requests = [
        DecodeRequest(
            policy, prompt, SamplingParams(max_new_tokens=lengths[n]), np.random.default_rng(n).random(9, np.float32)
        )
        for n, (policy, prompt) in enumerate(zip(policies, prompts, strict=True))
    ]
    finished: list[RowResult] = batch.admit(requests[:2])
    finished += batch.step()
    finished += batch.admit(requests[2:])
    while len(batch):
        finished += batch.step()
    assert len(finished) == len(requests)
    for done in finished:
        whole = np.concatenate([done.row.prompt, done.tokens])
        with torch.no_grad():
            hidden = backbone.hidden_states(PackedRows.from_rows([whole], [done.row.adapter], CPU))
        expected = backbone.compute_logits(hidden, None).log_softmax(-1)[len(done.row.prompt) - 1 : -1]
        scores = expected.gather(1, torch.from_numpy(done.tokens).long()[:, None])[:, 0]
        torch.testing.assert_close(torch.from_numpy(done.log_probs), scores, rtol=0, atol=1e-3)


def test_gradients_are_the_same_when_activations_are_computed_again(backbone: Backbone) -> None:
    gradients = []
    for again in (False, True):
        if again:
            backbone.checkpoint_activations()
        backbone.model.zero_grad()
        hidden = backbone.hidden_states(PackedRows.from_rows(ROWS, POLICIES, CPU))
        (hidden * torch.linspace(-1, 1, 32)).sum().backward()
        gradients.append(adapter_gradients(backbone))
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=1e-4, atol=1e-4)


def test_kernels_are_called_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would call an installed kernel also for the small float32 copy on a CPU."""

    def install(name: str) -> None:
        @wraps(unwrap(getattr(modeling_lfm2, name)))
        def kernel(*_: object, **__: object) -> None:
            raise RuntimeError("not on a GPU")

        monkeypatch.setattr(modeling_lfm2, name, kernel)

    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        install(name)
    monkeypatch.setattr(forward_check, "_checked", {})
    assert not build_small_backbone(FAMILY["LFM 2"]).native


DROPPING = {
    "Doge": {"hidden_dropout": 0.5, "attention_dropout": 0.5},
    "StableLM": {"hidden_dropout": 0.5, "attention_dropout": 0.5},
    "Qwen 2": {"attention_dropout": 0.5},
    "Granite 4 hybrid": {"attention_dropout": 0.5},
    "GPT-2": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5},
}


@pytest.mark.parametrize("name", DROPPING)
def test_nothing_is_dropped_also_where_activations_are_computed_again(name: str) -> None:
    """For that layers are set to train, and those of Doge drop what they add to the stream where they do."""
    family = FAMILY[name]
    found = build_small_backbone(replace(family, settings={**family.settings, **DROPPING[name]}))
    rows = PackedRows.from_rows(ROWS, [None] * len(ROWS), CPU)
    with torch.no_grad():
        wanted = build_small_backbone(family).hidden_states(rows)
    for again in (False, True):
        if again:
            found.checkpoint_activations()
            found.model.train()
        found.model.requires_grad_(True)
        torch.testing.assert_close(found.hidden_states(rows).detach(), wanted, rtol=0, atol=1e-5)


def test_a_layer_that_sees_some_of_the_tokens_is_refused(backbone: Backbone) -> None:
    layer = next(iter(backbone.layers.values()))
    with (
        backbone.routing.by_span([("one", 0, 8)], 8),
        pytest.raises(ValueError, match=r"leave it out of lora.target_modules"),
    ):
        layer(torch.zeros(1, 5, layer.base.in_features))


TARGETS = {"LFM 2": ["q_proj", "in_proj", "w1"], "Doge": ["q_proj", "up_proj"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LFM 2", "Doge"])
def test_a_team_on_such_a_model_trains(name: str, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Engine and learner agree, and the run says once that rows cannot be packed."""
    config = FAMILY[name].small_config()
    config.vocab_size, config.max_position_embeddings = len(tiny_tokenizer), 512
    config.eos_token_id, config.bos_token_id = tiny_tokenizer.eos_token_id, None
    model = random_model(config, tmp_path / "model")
    tiny_tokenizer.save_pretrained(model)
    table = recipe(model, tmp_path)
    for policy in table["policies"].values():
        policy["lora"] = {"rank": 4, "target_modules": TARGETS[name]}
    notes: list[str] = []
    run = parse_recipe(table)
    folder = RunFolder.create(run)
    assert train(run, folder, callbacks=[Listening(notes)]).step == 2
    assert notes == [
        "models.base: rows of DogeForCausalLM cannot be packed; it runs on transformers' own forward, which is slower "
        "(docs/models.md)"
    ] * (name in OWN)
    for row in folder.read_metrics():
        assert row["log_prob_difference_max"] < 1e-3
        assert row["skipped_updates"] == 0


class Listening(Callback):
    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def on_note(self, text: str) -> None:
        self.notes.append(text)
