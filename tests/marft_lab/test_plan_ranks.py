"""Plans of several processes: what each holds, what ranks send each other, and what keys are advised."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import AutoModelForCausalLM, LlamaConfig

from marft.config import RunSettings, load_recipe, parse_recipe
from marft.config.interfaces.schedule import Progress, UpdatePhase, UpdateSchedule
from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.device_specs import find_device_spec
from marft.models.model_sizes import COMMON_MODELS, ModelSizes
from marft.models.packed_rows import PackedRows
from marft.models.sharding import shard_backbone
from marft_lab.cli.planning import as_json, run_plan
from marft_lab.planning.changes import suggest_changes
from marft_lab.planning.memory import CUDA_CONTEXT_BYTES, PYTHON_BYTES, ProcessMemory
from marft_lab.planning.placement import ShardedWeights, full_gather_bytes, peak_gathered_bytes
from marft_lab.planning.plan import CapacityPlan, PlanRequest, Split, make_plan
from marft_lab.planning.workload import KnownLengths
from tests.nights import some
from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"
SMALL, LARGE = COMMON_MODELS["qwen2.5-0.5b"], COMMON_MODELS["qwen2.5-3b"]
PARTS = 4
VLLM = ("--engine.kind", "vllm")
SHARED = ("--engine.engine_args.gpu_memory_utilization", "0.45")  # by two of its processes
LINK, HOST = 0.6 * 450e9, 0.25 * 64e9  # bytes a second that an H100's links are taken to reach


def math(*overrides: str, size: str = "3B") -> RunSettings:
    return load_recipe("math_dual", ["--models.base.path", f"Qwen/Qwen2.5-{size}-Instruct", *overrides])


def ranked(*overrides: str, ranks: int = PARTS, size: str = "3B") -> RunSettings:
    return math("--training.ranks", str(ranks), *overrides, size=size)


def two_models(engine: str = "local", **training: Any) -> RunSettings:
    """A reasoner on a large model and an actor on a small one, on two ranks each."""
    return parse_recipe({
        "name": "two",
        "models": {
            "small": {"path": "Qwen/Qwen2.5-0.5B-Instruct", "ranks": [0, 1]},
            "large": {"path": "Qwen/Qwen2.5-3B-Instruct", "ranks": [2, 3]},
        },
        "policies": {"reasoner": {"model": "large"}, "actor": {"model": "small"}},
        "agents": [
            {"role": "reasoner", "policy": "reasoner"}, {"role": "actor", "policy": "actor", "answers": True},
        ],
        "environment": {"name": "reasoning_gym", "dataset": "chain_sum"},
        "engine": {"kind": engine},
        "training": {"ranks": 4, **training},
        "algorithm": {"name": "grpo"},
    })  # fmt: skip


def planned(run: RunSettings, gpu: str = "h100", gpus: int = PARTS, **asked: Any) -> CapacityPlan:
    return make_plan(run, PlanRequest(gpus, find_device_spec(gpu), **asked))


def taken(process: ProcessMemory, *words: str, when: str = "") -> float:
    return sum(p.bytes for p in process.parts if all(w in p.name for w in words) and when in ("", p.phase))


def seconds(split: Split, name: str) -> float:
    return sum(phase.seconds for phase in split.phases if phase.name == name)


def test_the_first_rank_samples_and_the_others_hold_no_keys_and_values() -> None:
    first, others = planned(ranked()).best.processes
    assert (first.name, first.count, others.name, others.count) == (
        "the run, rank 0 of 4",
        1,
        "each of ranks 1 to 3",
        3,
    )
    assert taken(first, "keys and values") > 0 == taken(others, "keys and values") + taken(others, "sampling")
    assert taken(first, "weights of base") == taken(others, "weights of base") == 2 * LARGE.parameters
    assert not taken(first, "gathered") + taken(others, "loaded")


def test_weights_in_parts_are_whole_on_the_card_of_the_first_rank_where_it_samples() -> None:
    whole, layer = 2 * LARGE.parameters, 2 * (LARGE.matrix_parameters + LARGE.small_parameters - LARGE.hidden_size) / 36
    root = 2 * (LARGE.head_parameters + LARGE.hidden_size)  # its head is its embeddings
    first, others = planned(ranked("--training.shard", "true")).best.processes
    for process in (first, others):
        assert taken(process, "weights of base, a part of 4") == whole / 4
        assert taken(process, "gathered layers", when="learning") == pytest.approx(2 * root + 2 * layer)
        assert taken(process, "adapter of reasoner") == 4 * LARGE.adapter_parameters(8, ("q_proj", "v_proj"))
    assert taken(first, "gathered to sample", when="sampling") == pytest.approx(whole + layer)
    assert not taken(others, "gathered to sample")
    assert taken(first, "as they are loaded", when="loading") == whole + CUDA_CONTEXT_BYTES
    assert first.on_card >= whole + CUDA_CONTEXT_BYTES
    assert taken(others, "as they are loaded", when="loading") == whole  # in the host's memory
    assert others.on_host == PYTHON_BYTES + whole


def test_weights_in_parts_are_whole_in_the_host_s_memory_where_an_engine_apart_samples() -> None:
    whole = 2 * LARGE.parameters
    first, others = planned(ranked("--training.shard", "true", *VLLM), gpus=5).best.processes[:2]
    assert first.on_card == others.on_card
    assert all(part.on_host for part in first.parts if part.phase in ("loading", "sampling"))
    assert not taken(first, "gathered to sample")
    assert taken(first, "whole to publish and save") == whole
    assert not taken(others, "whole to publish and save")
    assert first.on_host == pytest.approx(PYTHON_BYTES + whole + taken(first, "copy of what learns"))


def test_a_whole_policy_in_parts_has_a_part_of_all_that_it_steps_with() -> None:
    run = ranked("--training.shard", "true", "--policies.reasoner.train", "full")
    process, numbers = planned(run).best.processes[1], LARGE.parameters / 4
    assert taken(process, "weights of reasoner") == (4 + 2) * numbers
    assert taken(process, "optimizer of reasoner") == 8 * numbers
    assert taken(process, "gradient of reasoner", when="learning") == 4 * numbers
    adapter = LARGE.adapter_parameters(8, ("q_proj", "v_proj"))
    assert taken(process, "copy of what learns") == pytest.approx(12 * (numbers + adapter))


def test_moments_on_the_host_come_to_the_card_for_one_policy_s_step() -> None:
    numbers = LARGE.adapter_parameters(8, ("q_proj", "v_proj"))
    process = planned(math("--training.offload_optimizer", "true"), gpus=1).best.processes[0]
    assert [part.on_host for part in process.parts if "optimizer of" in part.name] == [True, True]
    assert taken(process, "optimizer of") == 16 * numbers
    assert taken(process, "moments of the policy that steps", when="stepping") == 8 * numbers
    here = planned(math(), gpus=1).best.processes[0]
    assert here.on_host == process.on_host - 16 * numbers
    assert here.permanent == process.permanent + 16 * numbers


def test_a_rank_holds_the_models_that_it_learns_on_and_the_first_holds_all() -> None:
    first, second, others = planned(two_models()).best.processes
    assert [one.name for one in (first, second, others)] == ["the run, rank 0 of 4", "rank 1", "each of ranks 2 to 3"]
    assert taken(first, "weights of") == 2 * (SMALL.parameters + LARGE.parameters)
    assert taken(second, "weights of") == 2 * SMALL.parameters
    assert taken(others, "weights of") == 2 * LARGE.parameters
    assert taken(first, "optimizer of reasoner") == taken(others, "optimizer of reasoner") > 0
    assert taken(first, "gradient of reasoner") == 0 < taken(others, "gradient of reasoner")
    assert taken(others, "actor") == taken(second, "reasoner") == 0
    parts = planned(two_models(shard=True)).best.processes
    assert taken(parts[0], "weights of large") == 2 * LARGE.parameters  # it learns nothing on it: whole
    assert taken(parts[0], "weights of small, a part of 2") == SMALL.parameters
    assert taken(parts[2], "weights of large, a part of 2") == LARGE.parameters


def test_models_on_ranks_of_their_own_are_learned_on_at_one_time() -> None:
    table = two_models().model_dump(mode="json", exclude_none=True)
    shared = parse_recipe(table, changes={"models.small.ranks": [], "models.large.ranks": []})
    apart, one_by_one = seconds(planned(two_models()).best, "update"), seconds(planned(shared).best, "update")
    # two ranks have the large model alone; else four have half as much of it each, and the small one after that
    assert apart / 2 < one_by_one < apart
    after = parse_recipe(table, changes={"algorithm.schedule": {"name": "agent-by-agent"}})
    assert seconds(planned(after).best, "update") > apart


class EverySecondStep(UpdateSchedule):
    """Somebody's own: all policies in one phase, every second step."""

    ratio_limit: ClassVar[float] = 1.0
    updates_together: ClassVar[bool] = True

    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        return [] if progress.step % 2 else [UpdatePhase(tuple(policies))]


@pytest.mark.parametrize(
    ("schedule", "together"),
    [
        ("marft.trainer.update_schedules:Simultaneous", True),
        ("tests.marft_lab.test_plan_ranks:EverySecondStep", True),
        ("tests.plugins:PlayAgain", False),  # it declares nothing
    ],
)
def test_a_schedule_given_by_import_path_is_planned_like_the_built_in_one(schedule: str, together: bool) -> None:
    table = two_models().model_dump(mode="json", exclude_none=True)
    like = parse_recipe(table, changes={"algorithm.schedule": {"name": "simultaneous" if together else "sequential"}})
    own = parse_recipe(table, changes={"algorithm.schedule": {"name": schedule}})
    assert planned(own).best.phases == planned(like).best.phases


def test_links_carry_sums_of_gradients_layers_and_what_the_first_rank_gathers() -> None:
    numbers = 2 * LARGE.adapter_parameters(8, ("q_proj", "v_proj"))
    run = ranked("--training.shard", "true")
    steps = run.algorithm.epochs * run.algorithm.minibatches
    split = planned(run).best
    assert seconds(split, "sums of gradients") == pytest.approx(4 * numbers * 2 * 3 / 4 * steps / LINK)
    assert seconds(split, "gathering for the first rank") == pytest.approx(2 * LARGE.parameters * 3 / 4 / LINK)
    assert seconds(split, "copies for undoing") == pytest.approx(12 * numbers / HOST)
    apart = planned(ranked("--training.shard", "true", *VLLM), gpus=5).best
    assert seconds(apart, "gathering for the first rank") == 0  # what is frozen is brought to the host once
    whole = planned(ranked()).best
    assert seconds(whole, "gathering for the first rank") == 0
    assert seconds(planned(math(), gpus=1).best, "sums of gradients") == 0


def test_a_slow_link_makes_ranks_wait_for_layers() -> None:
    run = ranked("--training.shard", "true")
    known = KnownLengths(prompt=100, action=100, longest=100)
    slow = planned(
        run,
        lengths=known,
        efficiencies=PlanRequest(1, find_device_spec("h100")).efficiencies.with_overrides(["link=1e-6"]),
    )
    quick = planned(run, lengths=known)
    assert seconds(slow.best, "update") > 100 * seconds(quick.best, "update")
    assert seconds(slow.best, "critic") > 100 * seconds(quick.best, "critic")


def test_moments_cross_to_the_card_and_back_with_every_optimizer_step() -> None:
    run = math("--training.offload_optimizer", "true")
    numbers, steps = (
        2 * LARGE.adapter_parameters(8, ("q_proj", "v_proj")),
        run.algorithm.epochs * run.algorithm.minibatches,
    )
    split = planned(run, gpus=1).best
    assert seconds(split, "moments from the host and back") == pytest.approx(16 * numbers * steps / HOST)
    assert seconds(split, "copies for undoing") == pytest.approx(4 * numbers / HOST)  # moments are there already


def test_workers_and_engines_are_processes_with_bytes_of_their_own() -> None:
    made = planned(math(*VLLM, "--rollout.workers", "16")).best
    worker = made.processes[-1]
    assert (worker.name, worker.count, worker.on_host, worker.fits) == ("each of 16 worker processes", 16, 75e6, True)
    assert made.on_host == pytest.approx(sum(one.count * one.on_host for one in made.processes))
    engines = [one for one in made.processes if "vllm" in one.name]
    assert sum(one.count for one in engines) == made.sampling


def test_an_engine_that_sleeps_leaves_its_card_to_the_learner() -> None:
    vllm = (*VLLM, "--engine.engine_args.gpu_memory_utilization", "0.75")
    sleeping = planned(math(*vllm, "--engine.sleep", "true", size="7B"), gpus=1)
    awake = planned(math(*vllm, size="7B"), gpus=1)
    assert sleeping.fits
    assert not awake.fits
    engine = sleeping.best.processes[-1]
    assert engine.permanent == 0
    assert taken(engine, "while it sleeps") > 2 * COMMON_MODELS["qwen2.5-7b"].parameters


def test_several_bases_share_the_cards_of_their_engines() -> None:
    made = planned(two_models(engine="vllm"), gpus=5)
    assert not made.fits
    assert any("engine.engine_args.gpu_memory_utilization" in one.keys for one in suggest_changes(made))


def test_our_own_engine_apart_has_one_card() -> None:
    made = planned(math("--engine.kind", "process"), gpus=4)
    assert [(split.sampling, split.learning) for split in made.splits] == [(1, 3)]
    assert made.best.keys == {"training.ranks": 3, "engine.device": "cuda:3"}


@pytest.mark.parametrize("overrides", [(), VLLM, (*VLLM, "--engine.sleep", "true"), ("--engine.kind", "process")])
@pytest.mark.parametrize("size", ["3B", "32B"])
def test_a_run_with_the_keys_that_are_named_is_planned_the_same(overrides: tuple[str, ...], size: str) -> None:
    run = math(*overrides, size=size)
    best = planned(run, gpus=8).best
    table = run.model_dump(mode="json", exclude_none=True)
    again = planned(parse_recipe(table, changes=dict(best.keys)), gpus=best.sampling + best.learning)
    assert [(one.sampling, one.learning) for one in again.splits] == [(best.sampling, best.learning)]
    assert again.best.seconds == best.seconds
    assert again.best.processes == best.processes
    assert not again.best.keys


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match=r"--gpus 2: training.ranks = 4 learn on a GPU each; give --gpus 4"):
        planned(ranked(), gpus=2)


def test_parts_are_advised_where_they_make_it_fit() -> None:
    words = ("--policies.actor.train", "full", "--policies.reasoner.train", "frozen", "--models.base.dtype", "float32")
    made = planned(ranked(*VLLM, *SHARED, *words), gpus=5)
    assert not made.fits
    assert {"training.shard": True} in [one.keys for one in suggest_changes(made)]


def test_weights_are_advised_whole_where_the_first_rank_has_no_room_for_its_part_beside_all() -> None:
    words = ("--training.shard", "true", "--models.base.gradient_checkpointing", "true")
    made = planned(ranked(*words, size="32B"))
    assert [process.fits for process in made.best.processes] == [False, True]
    assert {"training.shard": False} in [one.keys for one in suggest_changes(made)]


def test_moments_on_the_host_are_advised_where_they_make_it_fit() -> None:
    run = math(*VLLM, *SHARED, "--policies.actor.train", "full", "--policies.reasoner.train", "full", size="0.5B")
    made = planned(run, "rtx4090", gpus=2)
    assert not made.fits
    assert {"training.offload_optimizer": True} in [one.keys for one in suggest_changes(made)]


def test_models_are_advised_ranks_of_their_own() -> None:
    table = two_models().model_dump(mode="json", exclude_none=True)
    for name in ("small", "large"):
        table["models"][name] |= {"ranks": [], "gradient_checkpointing": True}
    table["policies"]["reasoner"]["train"] = table["policies"]["actor"]["train"] = "full"
    table["training"]["tokens_per_micro_batch"] = 1024
    made = planned(parse_recipe(table), "h100")
    assert not made.fits
    keys = [set(one.keys) for one in suggest_changes(made)]
    assert any({"models.small.ranks", "models.large.ranks"} <= one for one in keys)


def test_what_to_run_and_the_host_s_memory_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*VLLM, "--rollout.tasks_per_step", "64"]
    run_plan(Path("math_dual"), words, PlanRequest(4, find_device_spec("h100"), lag=1), "")
    said = capsys.readouterr().out
    assert "To run it so:  --training.ranks" in said
    assert "--engine.devices '[\"" in said
    assert "Of the host's memory, all processes together:" in said
    run_plan(Path("math_dual"), [], PlanRequest(16, find_device_spec("h100")), "")
    assert "Ranks are on one machine, which needs 16 GPUs for them" in capsys.readouterr().out
    worker = as_json(planned(math("--rollout.workers", "2")), [])["best"]["processes"][-1]
    assert (worker["count"], worker["room"]) == (2, None)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """This process among four, of which the others are only believed to be there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=PARTS, store=FakeStore())
    yield init_device_mesh("cpu", (PARTS,))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("tied", some([False, True]))
def test_parts_and_what_is_gathered_of_them_are_those_of_fsdp(
    whole: bool, tied: bool, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    attention.register_attention()
    from tensor_bytes import Held

    shape = ModelSizes(6, 256, 704, 4, 2, 64, 4096, tied)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.IMPLEMENTATION)
    backbone = Backbone(model.eval().requires_grad_(whole), 4096)
    planned = ShardedWeights("base", shape, 4, PARTS, whole)
    with Held(model.state_dict().values()) as held:
        shard_backbone(backbone, mesh)
        assert held.most == pytest.approx(
            planned.full_bytes, rel=0.05
        )  # as it is loaded, and taken apart layer by layer
        shards = backbone.shards
        assert shards is not None
        shards.release_weights()
        shards.gather_weights(keep=True)
        gc.collect()
        assert held.now() == pytest.approx(planned.full_bytes + planned.full_bytes / PARTS, rel=1e-3)
        assert held.most == pytest.approx(full_gather_bytes([planned]) + planned.full_bytes / PARTS, rel=0.01)
        shards.release_weights()
        shards.gather_weights(keep=False)
        shards.release_weights()
        gc.collect()
        parts = held.now()
        assert parts == pytest.approx(planned.full_bytes / PARTS, rel=1e-3)
        held.most = parts
        rows = PackedRows.from_rows([np.arange(4)], [None], backbone.device, 0)
        hidden = backbone.hidden_states(rows, attention.PackedPlan(rows.lengths, torch.device("cpu"), tokens=4))
        if whole:
            backbone.model.lm_head(hidden).sum().backward()  # its head's gradient lies there until the pass is over
    gradients = planned.full_bytes / PARTS if whole else 0.0
    assert held.most - parts == pytest.approx(peak_gathered_bytes([planned]) + gradients, rel=0.15)


def test_an_engine_apart_is_advised_where_the_first_rank_has_no_room_to_sample() -> None:
    made = planned(load_recipe("math_32b", []), "a100-40", gpus=8)
    assert not made.fits
    assert {"engine.kind": "vllm"} in [one.keys for one in suggest_changes(made)]
