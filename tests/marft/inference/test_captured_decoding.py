"""Decoding steps captured as CUDA graphs on a simulated GPU: replays equal the same steps run operation by operation.

The simulated capture records operations without running them, and a replay repeats them on the same tensors. So a
number that a step takes from the host, and not from a buffer, would keep its value from the capture.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Module

from marft.agents.streaming import Detokenizer
from marft.common import seeds
from marft.common.token_data import Grammar
from marft.common.types import ActionKey, Prompt, SamplingParams
from marft.inference import captured_decoding
from marft.inference.captured_decoding import can_capture
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.inference.grammar_masking import GrammarCompiler, GrammarMasker
from marft.inference.local import LocalEngine, LocalPolicy
from marft.models.backbone import Backbone
from marft.models.cuda_graphs import CudaGraphs, Graphs, Work
from marft.models.decode_cache import PackedDecodeCache
from tests.simulated_gpu import counting, simulated_gpu

POLICIES = ("one", "two", None)
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"temperature": 0.0}, {"temperature": 0.5}, {"top_k": 5}, {"temperature": 0.7, "top_p": 0.9}, {"stop": ("9 9",)},
)  # fmt: skip


class EagerGraphs:
    """Graphs that run the work itself at every replay."""

    def capture(self, work: Work) -> Work:
        return work

    def reset(self) -> None:
        return None


class FailingGraphs(EagerGraphs):
    """Graphs that change the rows' buffers in the warm-up, and then cannot be captured."""

    def capture(self, work: Work) -> Work:
        work()
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture(autouse=True)
def short_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows of a few tokens need several numbers of columns."""
    monkeypatch.setattr(captured_decoding, "COLUMN_STEP", 8)


@pytest.fixture
def on_gpu(backbone: Backbone) -> Iterator[Backbone]:
    """Backbone on the simulated GPU, with two adapters of different ranks."""
    torch.manual_seed(5)
    for rank, policy in ((3, "one"), (4, "two")):
        targets = ("q_proj", "v_proj", "up_proj") if policy == "one" else ("q_proj", "down_proj")
        backbone.add_adapter(policy, rank, 8.0, targets, seed=0)
    change_adapters(backbone)
    with simulated_gpu():
        Module.to(backbone.model, "cuda")
        yield backbone


def change_adapters(backbone: Backbone) -> None:
    """Add the same numbers to the adapters as any other call, in place."""
    for policy in ("one", "two"):
        for number, adapter in enumerate(backbone.adapters(policy).values()):
            noise = torch.randn(adapter.b.shape, generator=torch.Generator().manual_seed(number)) * 0.3
            with torch.no_grad():
                adapter.b.add_(noise.to(adapter.b.device))


def new_batch(backbone: Backbone, graphs: Graphs | None, **options: Any) -> RunningBatch:
    return RunningBatch(
        backbone, (2,), lambda: Detokenizer(lambda ids: " ".join(map(str, ids))), graphs=graphs, **options
    )


def new_rows(options: Sequence[dict[str, Any]], seed: int = 0, tokens: int = 5) -> list[DecodeRequest]:
    """Return rows of different prompts, policies and lengths."""
    random = np.random.default_rng(seed)
    rows = []
    for number, option in enumerate(options):
        sampling = SamplingParams(**{"max_new_tokens": tokens + 2 * (number % 4), **option})
        uniforms = seeds.generator(seed, "row", number).random(sampling.max_new_tokens, np.float32)
        prompt = random.integers(3, 90, 3 + 4 * (number % 3)).astype(np.int32)
        rows.append(DecodeRequest(POLICIES[number % 3], prompt, sampling, uniforms))
    return rows


Sampled = list[tuple[list[int], list[float]]]


def run(batch: RunningBatch, rows: Sequence[DecodeRequest], later: Sequence[DecodeRequest] = ()) -> Sampled:
    """Return tokens and log-probabilities of all rows; ``later`` join after two steps, and one row is cancelled."""
    done: list[RowResult] = batch.admit(rows)
    for step in range(1000):
        if step == 2 and later:
            done += batch.admit(later)
            batch.abort([rows[0]])
        if not len(batch):
            break
        done += batch.step()
    found = {id(result.row): result for result in done}
    return [
        (found[id(row)].tokens.tolist(), found[id(row)].log_probs.tolist()) for row in [*rows, *later][bool(later) :]
    ]


def play(backbone: Backbone, graphs: Graphs | None) -> tuple[list[Sampled], RunningBatch]:
    """Return what a batch samples, before and after its adapters change: rows join, finish, move, and leave."""
    batch = new_batch(backbone, graphs, prefix_bytes=2**20)
    sampled = []
    for seed in (1, 1):
        sampled.append(run(batch, new_rows(OPTIONS[:5], seed), new_rows(OPTIONS, seed + 10)))
        change_adapters(backbone)
        batch.clear_cache()
    sampled.append(run(batch, new_rows([{"max_new_tokens": 14}], 4)))
    return sampled, batch


@pytest.fixture
def weights(on_gpu: Backbone) -> Callable[[], None]:
    """Function that restores the first weights."""
    saved = [parameter.detach().clone() for parameter in on_gpu.model.parameters()]

    @torch.no_grad()
    def restore() -> None:
        for parameter, value in zip(on_gpu.model.parameters(), saved, strict=True):
            parameter.copy_(value)

    return restore


@pytest.mark.slow
def test_replays_equal_the_same_steps_without_graphs(on_gpu: Backbone, weights: Callable[[], None]) -> None:
    replayed, batch = play(on_gpu, CudaGraphs(on_gpu.device))
    assert batch.captured is not None
    assert not batch.captured.failed
    assert batch.captured.captures >= 6
    weights()
    eager, _ = play(on_gpu, EagerGraphs())
    assert replayed == eager
    weights()
    general, _ = play(on_gpu, None)
    for mine, theirs in zip(replayed, general, strict=True):
        assert [tokens for tokens, _ in mine] == [tokens for tokens, _ in theirs]
        for (_, log_probs), (_, expected) in zip(mine, theirs, strict=True):
            assert log_probs == pytest.approx(expected, abs=1e-5)
    assert replayed[0] != replayed[1], "the adapters have changed"


def test_a_step_is_one_launch_and_one_read(on_gpu: Backbone) -> None:
    batch = new_batch(on_gpu, CudaGraphs(on_gpu.device))
    batch.admit(new_rows([{"max_new_tokens": 12}] * 6))
    batch.step()
    assert batch.captured is not None
    captures = batch.captured.captures
    with counting("captured step") as counts:
        batch.step()
    assert batch.captured.captures == captures
    assert dict(counts.launches) == {"graph replay": 1}
    assert (counts.to_device.number, counts.to_host.number, counts.num_syncs) == (1, 1, 1)


def test_a_publication_frees_the_graphs_and_their_cache(on_gpu: Backbone) -> None:
    batch = new_batch(on_gpu, CudaGraphs(on_gpu.device))
    rows = new_rows([{"max_new_tokens": 4}] * 3)
    before = run(batch, rows)
    assert batch.captured is not None
    change_adapters(on_gpu)
    batch.clear_cache()
    assert isinstance(batch.decode_cache, PackedDecodeCache)
    assert batch.decode_cache.kv_cache.slots == 0
    after = run(batch, rows)
    assert after == run(new_batch(on_gpu, EagerGraphs()), rows)
    assert [mine == theirs for mine, theirs in zip(after, before, strict=True)] == [False, False, True]


@pytest.mark.slow
def test_a_changed_adapter_of_a_policy_without_rows_is_read_when_a_row_joins(on_gpu: Backbone) -> None:
    one, two, _ = new_rows([{"max_new_tokens": 12}] * 3)
    batch = new_batch(on_gpu, CudaGraphs(on_gpu.device))
    batch.admit([replace(two, adapter="one"), one])
    batch.step()
    with torch.no_grad():
        for adapter in on_gpu.adapters("two").values():
            adapter.b.mul_(-1.0)
    batch.admit([two])
    done: list[RowResult] = []
    while len(batch):
        done += batch.step()
    (tokens,) = (result.tokens.tolist() for result in done if result.row is two)
    assert tokens == run(new_batch(on_gpu, None), [two])[0][0]


@pytest.mark.slow
def test_a_new_adapter_or_a_moved_weight_needs_new_graphs(on_gpu: Backbone) -> None:
    batch = new_batch(on_gpu, CudaGraphs(on_gpu.device))
    rows = new_rows([{"max_new_tokens": 6}] * 3)
    run(batch, rows)
    on_gpu.remove_adapter("two")
    on_gpu.add_adapter("two", 2, 4.0, ("k_proj",), seed=3)
    for adapter in on_gpu.adapters("two").values():
        torch.nn.init.ones_(adapter.b)
    batch.clear_cache()
    assert run(batch, rows) == run(new_batch(on_gpu, EagerGraphs()), rows)
    embeddings = on_gpu.decoder.embed_tokens.weight
    embeddings.data = embeddings.data * 2.0
    batch.clear_cache()
    assert run(batch, rows) == run(new_batch(on_gpu, EagerGraphs()), rows)


@pytest.mark.slow
def test_alternatives_take_the_general_step(on_gpu: Backbone) -> None:
    rows = new_rows([{"alternatives": 2, "max_new_tokens": 4}, {"max_new_tokens": 12}])
    batch = new_batch(on_gpu, CudaGraphs(on_gpu.device))
    mixed = run(batch, rows)
    assert mixed == [
        (tokens, pytest.approx(log_probs, abs=1e-5)) for tokens, log_probs in run(new_batch(on_gpu, None), rows)
    ]
    assert batch.captured is not None
    assert batch.captured.captures > 0, "after the row with alternatives has finished"


@pytest.mark.slow
def test_grammars_are_enforced_in_captured_steps(on_gpu: Backbone, tiny_tokenizer: Any) -> None:
    grammar = Grammar("regex", "[0-9]{3}x?[0-9]{5}")
    rows = new_rows([{}, {"grammar": grammar}, {"grammar": grammar, "temperature": 0.0}, {"top_k": 3}])
    found = []
    for graphs in (CudaGraphs(on_gpu.device), EagerGraphs(), None):
        masker = GrammarMasker(GrammarCompiler.for_tokenizer(tiny_tokenizer, [2]), len(on_gpu.head.weight))
        found.append(run(new_batch(on_gpu, graphs, grammar_masker=masker), rows))
    assert found[0] == found[1]
    assert [tokens for tokens, _ in found[0]] == [tokens for tokens, _ in found[2]]


def test_a_failed_capture_is_told_once_and_changes_no_row(on_gpu: Backbone, caplog: pytest.LogCaptureFixture) -> None:
    rows = new_rows([{"max_new_tokens": 3}] * 2)
    with caplog.at_level(logging.WARNING):
        sampled = run(new_batch(on_gpu, FailingGraphs()), rows)
    assert sampled == run(new_batch(on_gpu, None), rows)
    assert [record.getMessage() for record in caplog.records] == [
        "decoding steps cannot be captured as CUDA graphs, and run operation by operation: RuntimeError: operation not "
        "permitted when stream is capturing"
    ]


@pytest.mark.slow
def test_reset_frees_graphs_and_buffers(on_gpu: Backbone) -> None:
    batch = new_batch(on_gpu, CudaGraphs(on_gpu.device))
    batch.admit(new_rows([{"max_new_tokens": 12}] * 3))
    batch.step()
    batch.reset()
    rows = new_rows(OPTIONS)
    assert run(batch, rows) == run(new_batch(on_gpu, EagerGraphs()), rows)


def test_only_forwards_on_the_device_alone_are_captured(backbone: Backbone) -> None:
    assert can_capture(backbone)
    for change in ({"fused": False}, {"native": True}, {"recurrent": True}, {"shards": SimpleNamespace()}):
        parts = {"fused": True, "native": False, "recurrent": False, "shards": None, **change}
        assert not can_capture(SimpleNamespace(**parts))  # type: ignore[arg-type]


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_the_engine_captures_on_a_gpu_unless_the_recipe_forbids_it(
    on_gpu: Backbone, tiny_tokenizer: Any, cuda_graphs: bool
) -> None:
    policies = {"solver": LocalPolicy(on_gpu, "one", tiny_tokenizer, (2,))}

    async def sample(engine: LocalEngine) -> None:
        sampling, key = SamplingParams(max_new_tokens=3), ActionKey("train/0", "task", 0, 0, "solver", 0)
        await engine.sample("solver", Prompt(np.array([5, 6, 7], np.int32)), sampling, key)

    with ThreadPoolExecutor(1) as worker:
        engine = LocalEngine(policies, worker, seed=0, cuda_graphs=cuda_graphs)
        with counting("tokens") as counts:
            asyncio.run(sample(engine))
    assert ("graph replay" in counts.launches) == cuda_graphs
