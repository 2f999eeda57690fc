"""Records of experts from the sampler: complete, and of the forward that computed each token's keys and values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from marft.agents.streaming import Detokenizer
from marft.common.token_data import RoutedExperts
from marft.common.types import Completion
from marft.inference.decoding import RowResult, RunningBatch
from marft.inference.plugin_engine import find_problem
from marft.inference.subprocess_engine.engine import _build_experts
from marft.inference.subprocess_engine.messages import TokenChunk
from marft.models.backbone import Backbone
from marft.models.packed_rows import PackedRows
from tests.mixtures import CPU, loaded, mixture, sampled

PROMPTS = [(np.arange(1, n + 1) ** 2 * 5 % 400).astype(np.int32) for n in (4, 19, 7, 31)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase) -> Path:
    return mixture("Qwen 3 with experts", tmp_path_factory.mktemp("mixture"), tiny_tokenizer)


@pytest.fixture
def backbone(folder: Path) -> Backbone:
    found = loaded(folder)
    for policy in ("one", "two"):
        found.add_adapter(policy, 4, 8.0, ("q_proj",), 0, ("experts.gate_up_proj",))
        for adapter in found.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.3)
    return found


def table_of(result: RowResult) -> np.ndarray:
    """The record, which is complete."""
    assert result.experts is not None
    size = len(result.row.prompt) + len(result.tokens) - 1
    table = result.experts.table(size)
    assert len(result.experts.flat) == table.size
    assert table.min() >= 0
    return table


@torch.no_grad()
def packed_forward(backbone: Backbone, result: RowResult, replayed: bool) -> tuple[np.ndarray, torch.Tensor]:
    """Selected experts, and log-probs of the sampled tokens."""
    row = np.concatenate([result.row.prompt, result.tokens[:-1]])
    rows = PackedRows.from_rows(
        [row], [result.row.adapter], CPU, experts=[table_of(result)] if replayed else ()
    )  # fmt: skip
    with backbone.record_experts() as log:
        hidden = backbone.hidden_states(rows)
    table = log.table()
    assert table is not None
    scores = backbone.compute_logits(hidden, None).log_softmax(-1)[len(result.row.prompt) - 1 :]
    return table.numpy(), scores.gather(1, torch.from_numpy(result.tokens).long()[:, None])[:, 0]


@pytest.mark.parametrize("node_cost", [0.0, 1e9])
def test_records_of_rows_of_all_policies_are_those_of_each_row_alone(
    node_cost: float, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows join and leave at different times, some with equal prompts or common prefixes."""
    monkeypatch.setattr("marft.models.backbone.NODE_COST", node_cost)
    prompts = [*PROMPTS, PROMPTS[3].copy(), np.concatenate([PROMPTS[3], PROMPTS[0]])]
    policies = ["one", None, "two", "one", "one", "one"]
    for result in sampled(backbone, prompts, policies):
        experts, log_probs = packed_forward(backbone, result, replayed=False)
        assert np.array_equal(experts, table_of(result))
        torch.testing.assert_close(torch.from_numpy(result.log_probs), log_probs, rtol=0, atol=1e-4)


def test_a_conversation_keeps_the_experts_behind_its_cached_keys_and_values(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix from the cache is not computed again, so its record is the first one, even if routers would change."""
    monkeypatch.setattr("marft.models.backbone.NODE_COST", 0.0)
    batch = RunningBatch(backbone, [], lambda: Detokenizer(str), prefix_bytes=2**24)
    first = sampled(backbone, PROMPTS[3:], ["one"], tokens=24, batch=batch)[0]
    whole = np.concatenate([first.row.prompt, first.tokens])
    with torch.no_grad():
        for layer in backbone.decoder.layers:
            layer.mlp.gate.weight.add_(torch.randn_like(layer.mlp.gate.weight))
    turns = [np.concatenate([whole, PROMPTS[0]]), np.concatenate([whole, PROMPTS[2]])]
    computed = batch.prefill.tokens.computed
    for result in sampled(backbone, turns, ["one"] * 2, batch=batch):
        kept, known = table_of(result), table_of(first)
        assert np.array_equal(kept[: len(known)], known)
        assert not np.array_equal(packed_forward(backbone, result, replayed=False)[0][: len(known)], known)
        assert np.array_equal(packed_forward(backbone, result, replayed=True)[0], kept)
    assert batch.prefill.tokens.computed - computed < sum(map(len, turns)) / 2


def test_without_the_key_nothing_is_recorded(folder: Path) -> None:
    assert all(result.experts is None for result in sampled(loaded(folder, router_replay=False), PROMPTS, [None] * 4))


def test_records_of_an_engine_in_another_process_belong_to_the_prompt_and_the_kept_tokens() -> None:
    """A stop string of the run drops the last tokens."""
    experts = np.arange(7 * 2 * 3, dtype=np.int32).reshape(7, 2, 3)
    tokens, log_probs = np.array([5, 6, 7], np.int32), np.zeros(3, np.float32)
    chunk = TokenChunk(1, tokens, log_probs, "stop", 0, 0, experts=experts)

    kept = _build_experts(chunk, 6)
    assert kept is not None
    assert np.array_equal(kept.table(6), experts[:6])
    assert _build_experts(replace(chunk, experts=experts[:0]), 6) is None


@pytest.mark.parametrize("flat", [[0, 1, 2], [0, -2]])
def test_a_wrong_record_of_a_plugin_engine_is_refused(flat: list[int]) -> None:
    good = Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), "", "stop")
    record = RoutedExperts(np.array([1, -1], np.int16), 1, 2)
    assert not find_problem(replace(good, experts=record), 4, 9)
    assert "RoutedExperts" in find_problem(replace(good, experts=replace(record, flat=np.array(flat, np.int16))), 4, 9)
