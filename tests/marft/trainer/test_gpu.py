"""What a machine with a GPU is asked: ``make gpu``. On a CPU the same questions are asked of the CPU, so that they work."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from marft.agents.streaming import Detokenizer
from marft.common.types import SamplingParams
from marft.config.interfaces.schedule import Progress
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.models.cuda_graphs import CudaGraphs, Graphs, Work
from marft.models.packed_rows import PackedRows
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import BatchCounts
from marft.trainer.scoring import score_batch
from tests.learners import begun, episodes, recipe, samples_of

DEVICE = os.environ.get("MARFT_GPU", "")  # "cuda", or "cpu" to try the questions out
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not DEVICE, reason="make gpu asks them, on a machine that has one"),
]
ROWS = [np.arange(3, 9, dtype=np.int32), np.arange(3, 30, dtype=np.int32), np.arange(40, 51, dtype=np.int32)]


def no_waiting() -> AbstractContextManager[object]:
    """An error for whoever waits for the GPU; of a CPU nobody can tell."""
    if DEVICE == "cpu":
        return nullcontext()
    return _Mode("error")


class _Mode:
    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(self.mode)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_sync_debug_mode("default")


def waits(work: Callable[[], object]) -> int:
    """How often the GPU is waited for."""
    if DEVICE == "cpu":
        work()
        return 1
    with warnings.catch_warnings(record=True) as heard, _Mode("warn"):
        warnings.simplefilter("always")
        work()
    return sum("synchroniz" in str(one.message) for one in heard)


def models(tmp_path: Path, device: str, *overrides: str) -> PolicyRegistry:
    torch.manual_seed(0)
    return PolicyRegistry(recipe(tmp_path, "marft", "--device", device, *overrides))


class _Uncaptured:
    """Graphs of a CPU: their replay does the work anew."""

    def capture(self, work: Work) -> Work:
        return work

    def reset(self) -> None:
        return None


def captured() -> Graphs:
    return _Uncaptured() if DEVICE == "cpu" else CudaGraphs(torch.device(DEVICE, 0))


def decoder(of: PolicyRegistry, graphs: Graphs | None = None) -> RunningBatch:
    return RunningBatch(
        of.base_models["base"], [2], lambda: Detokenizer(lambda ids: " ".join(map(str, ids))), graphs=graphs
    )


def played(batch: RunningBatch, temperature: float = 0.0) -> list[RowResult]:
    """Rows of three policies and of different lengths: they leave one after another."""
    rows = [
        DecodeRequest(name, ids, SamplingParams(max_new_tokens=most, temperature=temperature), uniforms)
        for name, ids, most, uniforms in zip(
            ("reasoner", "actor", None),
            ROWS,
            (8, 14, 11),
            np.random.default_rng(0).random((3, 14), np.float32),
            strict=True,
        )
    ]
    done = batch.admit(rows)
    while len(batch):
        done += batch.step()
    found = {id(one.row): one for one in done}
    return [found[id(row)] for row in rows]


def test_it_decodes_what_the_cpu_decodes(tmp_path: Path) -> None:
    here, there = decoder(models(tmp_path, "cpu")), decoder(models(tmp_path, DEVICE))
    for mine, theirs in zip(played(there), played(here), strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(mine.log_probs, theirs.log_probs, atol=2e-3)


def change_adapters(of: PolicyRegistry) -> None:
    """Add the same numbers to all adapters of any device, as a step of learning does in place."""
    for role in ("reasoner", "actor"):
        for number, adapter in enumerate(of.base_models["base"].adapters(role).values()):
            noise = torch.randn(adapter.b.shape, generator=torch.Generator().manual_seed(number)) * 0.1
            with torch.no_grad():
                adapter.b.add_(noise.to(adapter.b.device))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
def test_captured_steps_decode_what_others_do_also_after_learning(tmp_path: Path, temperature: float) -> None:
    eager, replayed = models(tmp_path, DEVICE), models(tmp_path, DEVICE)
    plain, batch = decoder(eager), decoder(replayed, captured())
    for _ in range(3):
        for mine, theirs in zip(played(batch, temperature), played(plain, temperature), strict=True):
            assert mine.tokens.tolist() == theirs.tokens.tolist()
            np.testing.assert_allclose(mine.log_probs, theirs.log_probs, atol=1e-4)
        for one in (eager, replayed):
            change_adapters(one)
        batch.clear_cache()
        plain.clear_cache()


@pytest.mark.parametrize("name", ["marft", "grpo", "happo"])
def test_it_learns_what_the_cpu_learns(tmp_path: Path, name: str) -> None:
    there, here = (
        begun(recipe(tmp_path, name, "--device", device)).learn(episodes(), Progress(0, 0))
        for device in (DEVICE, "cpu")
    )
    assert there.keys() == here.keys()
    for metric in ("gradient_norm", "policy_loss", "entropy", "critic/loss"):
        if metric in here:
            assert there[metric] == pytest.approx(here[metric], rel=2e-2, abs=1e-4), metric


def test_a_whole_model_in_half_precision_learns_what_the_cpus_does_in_float32(tmp_path: Path) -> None:
    full = ("--policies.actor.train", "full", "--policies.reasoner.train", "full")
    there, here = (
        begun(recipe(tmp_path, "marft", *full, "--device", device, dtype=dtype)).learn(episodes(), Progress(0, 0))
        for device, dtype in ((DEVICE, "bfloat16"), ("cpu", "float32"))
    )
    for metric in ("gradient_norm", "entropy"):
        assert there[metric] == pytest.approx(here[metric], rel=0.2), metric


def test_half_precision_scores_what_the_cpus_does(tmp_path: Path) -> None:
    batch = samples_of(episodes())
    found = []
    for device in (DEVICE, "cpu"):
        learner = begun(recipe(tmp_path, "marft", "--device", device, dtype="bfloat16"))
        (packed, *_) = learner.packing.micro_batches(batch, BatchCounts.from_samples(batch, pooled=False))
        with torch.no_grad():
            found.append(score_batch(packed).log_probs.cpu())
    assert (found[0] - found[1]).abs().mean() < 0.05


@pytest.mark.parametrize("as_graph", [False, True])
def test_a_step_of_decoding_waits_once(tmp_path: Path, as_graph: bool) -> None:
    batch = decoder(models(tmp_path, DEVICE), captured() if as_graph else None)
    batch.admit(
        [DecodeRequest(None, ids, SamplingParams(max_new_tokens=8), np.full(8, 0.5, np.float32)) for ids in ROWS]
    )
    batch.step()
    assert waits(batch.step) == 1


def test_forward_and_backward_of_a_micro_batch_wait_for_nothing(tmp_path: Path) -> None:
    learner = begun(recipe(tmp_path, "marft", "--device", DEVICE))
    batch = samples_of(episodes())
    (packed, *_) = learner.packing.micro_batches(batch, BatchCounts.from_samples(batch, pooled=False))
    score_batch(packed).log_probs.sum().backward()  # kernels are chosen, and libraries begun
    with no_waiting():
        score_batch(packed).log_probs.sum().backward()


def test_memory_grows_with_tokens_and_no_faster(tmp_path: Path) -> None:
    if DEVICE == "cpu":
        pytest.skip("torch counts no memory of a CPU")
    of = models(tmp_path, DEVICE)
    base = of.base_models["base"]
    most = []
    for rows in (64, 128):
        torch.cuda.reset_peak_memory_stats()
        packed = PackedRows.from_rows([np.arange(3, 103, dtype=np.int32)] * rows, [None] * rows, base.device)
        with torch.no_grad():
            base.hidden_states(packed)
        most.append(torch.cuda.max_memory_allocated())
    assert most[1] < 2.5 * most[0]
