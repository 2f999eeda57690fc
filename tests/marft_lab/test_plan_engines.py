"""What plans say of those who sample: one engine a set of weights, with keys and values by hand."""

from __future__ import annotations

from typing import Any

import pytest

from marft.config import RunSettings, load_recipe, parse_recipe
from marft.models.device_specs import find_device_spec
from marft.models.model_sizes import COMMON_MODELS
from marft_lab.planning.memory import CUDA_CONTEXT_BYTES, MemoryComponent, ProcessMemory
from marft_lab.planning.plan import CapacityPlan, PlanRequest, Split, make_plan
from marft_lab.planning.timing import Efficiencies, EngineSpeed
from marft_lab.planning.workload import KnownLengths

SHAPE = COMMON_MODELS["qwen2.5-3b"]
ADAPTER = SHAPE.adapter_parameters(8, ("q_proj", "v_proj"))
VLLM = ("--engine.kind", "vllm")
PROCESS = ("--engine.kind", "process")
WHOLE = ("--policies.reasoner.train", "full")
KNOWN_LENGTHS = KnownLengths(prompt=100, action=50, longest=80)


def math(*overrides: str, size: str = "3B", tasks: int = 64) -> RunSettings:
    words = ["--models.base.path", f"Qwen/Qwen2.5-{size}-Instruct", "--rollout.tasks_per_step", str(tasks)]
    return load_recipe("math_dual", [*words, *overrides])


def planned(run: RunSettings, gpus: int = 1, gpu: str = "h100", **asked: Any) -> CapacityPlan:
    return make_plan(run, PlanRequest(gpus, find_device_spec(gpu), **asked))


def taken(process: ProcessMemory, *words: str) -> float:
    return sum(part.bytes for part in process.parts if all(word in part.name for word in words))


def seconds(one: Split, name: str) -> float:
    return sum(phase.seconds for phase in one.phases if phase.name == name)


def engines(made: CapacityPlan) -> dict[str, ProcessMemory]:
    kind = made.run.engine.name
    return {one.name: one for one in made.best.processes if f"{kind} of" in one.name}


class TestInProcess:
    def test_keys_and_values_of_all_rows_are_there_and_prefixes_as_far_as_they_may(self) -> None:
        token = 2 * 2 * 36 * 256  # bytes: keys and values in bfloat16, 36 layers, two heads of 128
        process = planned(math(), lengths=KNOWN_LENGTHS).best.processes[0]
        columns = 2 * (100 + 64)  # the prompt and room for 64, doubled once, as 180 are needed
        assert taken(process, "keys and values") == token * 64 * columns
        assert taken(process, "kept prefixes") == 512 * 2**20  # which 128 rows of 150 tokens are more than
        few = planned(math(tasks=4), lengths=KNOWN_LENGTHS).best.processes[0]
        assert taken(few, "kept prefixes") == token * 8 * 150

    def test_a_policy_that_is_tuned_whole_has_a_running_batch_of_its_own(self) -> None:
        process = planned(math(*WHOLE), lengths=KNOWN_LENGTHS).best.processes[0]
        base, whole = taken(process, "keys and values of base"), taken(process, "keys and values of reasoner")
        assert whole == base > 0
        both = planned(math(*WHOLE, "--policies.actor.train", "full"), lengths=KNOWN_LENGTHS).best.processes[0]
        assert [part.name for part in both.parts if "keys and values" in part.name] == [
            "keys and values of reasoner",
            "keys and values of actor",
        ]

    def test_models_that_only_read_for_others_are_sampled_from_by_nobody(self) -> None:
        run = with_a_teacher("local")
        process = planned(run, lengths=KNOWN_LENGTHS).best.processes[0]
        assert taken(process, "weights of reader") > 0
        assert taken(process, "keys and values of reader") == 0 < taken(process, "keys and values of base")
        assert list(engines(planned(with_a_teacher("vllm"), 2))) == ["vllm of base"]


def with_a_teacher(engine: str) -> RunSettings:
    """An actor on a model that is here, and a teacher behind an endpoint, which a small model reads for."""
    return parse_recipe({
        "name": "taught",
        "models": {
            "base": {"path": "Qwen/Qwen2.5-3B-Instruct"},
            "reader": {"path": "Qwen/Qwen2.5-0.5B-Instruct"},
            "teacher": {"path": "large", "endpoint": {"url": "http://127.0.0.1:9/v1", "local_model": "reader"}},
        },
        "policies": {"teacher": {"model": "teacher", "train": "frozen"}, "actor": {"model": "base"}},
        "agents": [{"role": "teacher", "policy": "teacher"}, {"role": "actor", "policy": "actor", "answers": True}],
        "environment": {"name": "reasoning_gym", "dataset": "chain_sum"},
        "engine": {"kind": engine},
    })  # fmt: skip


class TestApart:
    def test_one_process_samples_for_all_adapters_of_a_base(self) -> None:
        vllm = engines(planned(math(*VLLM), 2))["vllm of base"]
        assert taken(vllm, "weights of base") == 2 * (SHAPE.parameters + 2 * ADAPTER)
        own = engines(planned(math(*PROCESS), 2, lengths=KNOWN_LENGTHS))["process of base"]
        assert taken(own, "weights of base") == 2 * SHAPE.parameters + 4 * 2 * ADAPTER
        here = planned(math(), lengths=KNOWN_LENGTHS).best.processes[0]
        for what in ("keys and values", "kept prefixes", "sampling on"):
            assert taken(own, what) == taken(here, what) > 0
        assert taken(own, "CUDA") == CUDA_CONTEXT_BYTES

    @pytest.mark.parametrize(("engine", "slot"), [(VLLM, 2), (PROCESS, 4)])
    def test_a_policy_that_is_tuned_whole_has_a_process_of_its_own(self, engine: tuple[str, ...], slot: int) -> None:
        kind = engine[1]
        found = engines(planned(math(*engine, *WHOLE), 2))
        assert list(found) == [f"{kind} of base", f"{kind} of reasoner"]
        assert taken(found[f"{kind} of base"], "weights") == 2 * SHAPE.parameters + slot * ADAPTER
        assert taken(found[f"{kind} of reasoner"], "weights") == 2 * SHAPE.parameters
        alone = math(*engine, *WHOLE, "--policies.actor.train", "full")
        assert list(engines(planned(alone, 2))) == [f"{kind} of reasoner", f"{kind} of actor"]

    def test_on_a_processor_whole_weights_are_sampled_from_in_float32_whatever_the_base_is_held_in(self) -> None:
        half = ("--models.base.dtype", "bfloat16")
        found = engines(planned(math(*PROCESS, *WHOLE, *half), 2, "cpu", lengths=KNOWN_LENGTHS))
        base, whole = found["process of base"], found["process of reasoner"]
        assert taken(whole, "weights") == 4 * SHAPE.parameters
        rest = SHAPE.parameters - SHAPE.matrix_parameters
        assert taken(base, "weights") == 2 * SHAPE.matrix_parameters + 4 * (rest + ADAPTER)
        assert taken(whole, "keys and values") == taken(base, "keys and values") == 2 * 4 * 36 * 256 * 64 * 328

    def test_processes_on_the_same_card_have_its_room_together(self) -> None:
        assert not planned(math(*VLLM, *WHOLE, size="0.5B"), 2).fits
        small = ("--engine.engine_args.gpu_memory_utilization", "0.4")
        made = planned(math(*VLLM, *WHOLE, *small, size="0.5B"), 2)
        assert made.fits
        assert [one.on_card for one in engines(made).values()] == pytest.approx([0.4 * 80e9] * 2)

    def test_a_request_s_rows_are_divided_among_replicas_and_its_logits_among_cards(self) -> None:
        for split in planned(math(*VLLM), 3, lengths=KNOWN_LENGTHS).splits:
            (each,) = (one for one in split.processes if "vllm" in one.name)
            assert each.count == split.sampling in (1, 2)
            assert taken(each, "logits") == 2 * 4 * 64 / each.count * SHAPE.vocab_size
        large = COMMON_MODELS["qwen2.5-72b"]
        split = planned(math(*VLLM, size="72B"), 5, "a100-80", lengths=KNOWN_LENGTHS).splits[3]
        (vllm,) = (one for one in split.processes if "vllm" in one.name)
        assert (vllm.count, split.keys["engine.engine_args.tensor_parallel_size"]) == (1, 4)
        assert taken(vllm, "logits") == 2 * 4 * 64 * large.vocab_size / 4
        assert vllm.on_card == pytest.approx(0.9 * 80e9)

    def test_cards_of_an_engine_read_its_weights_together(self) -> None:
        shape, run = COMMON_MODELS["qwen2.5-32b"], math(*VLLM, size="32B", tasks=1)
        split = planned(run, 3, "a100-40", lengths=KnownLengths(prompt=100, action=100, longest=100)).splits[1]
        weights = 2 * (shape.parameters + 2 * shape.adapter_parameters(8, ("q_proj", "v_proj")))
        token = (weights + 150 * 2 * 2 * 64 * 1024) / (2 * 1555e9 * 0.6) + 2e-3
        assert seconds(split, "writing") == pytest.approx(2 * 100 * token)  # one agent after the other

    def test_who_has_an_engine_for_itself_still_waits_for_the_agent_before(self) -> None:
        known = KnownLengths(prompt=100, action=100, longest=100)
        one, two = planned(math(*VLLM, tasks=1), 3, lengths=known).splits
        assert (one.sampling, two.sampling) == (1, 2)
        assert seconds(two, "writing") == seconds(one, "writing") > 0

    def test_rows_that_a_card_has_no_room_for_wait(self) -> None:
        shape, reached = COMMON_MODELS["qwen2.5-7b"], Efficiencies()
        split = planned(
            math(*VLLM, size="7B"), 2, "rtx4090", lengths=KnownLengths(prompt=1500, action=500, longest=500)
        ).best
        weights, token = (
            2.0 * (shape.parameters + 2 * shape.adapter_parameters(8, ("q_proj", "v_proj"))),
            2 * 2 * 28 * 512,
        )
        rows = (0.9 * 24e9 - weights) / (token * 2000)
        engine = EngineSpeed(shape, weights, token, 165e12, 1008e9, reached.captured, reached.iteration)
        assert 2 * rows < 128  # of both agents
        assert seconds(split, "writing") == pytest.approx(128 / rows * 500 * engine.step(rows, 1750, reached))

    def test_what_shares_its_cards_with_ranks_samples_on_all_of_them(self) -> None:
        run = math(*VLLM, "--engine.sleep", "true")
        one, four = (planned(run, gpus).splits[0] for gpus in (1, 4))
        assert (one.sampling, four.sampling) == (0, 0)
        assert seconds(one, "reading prompts") == pytest.approx(4 * seconds(four, "reading prompts"))

    def test_on_the_same_cards_a_lag_makes_nobody_work_at_the_same_time(self) -> None:
        split = planned(math(*VLLM, "--engine.sleep", "true"), 4, lag=1).splits[0]
        assert split.seconds == pytest.approx(sum(phase.seconds for phase in split.phases))

    def test_one_that_sleeps_leaves_what_ranks_always_have(self) -> None:
        split = planned(
            math(*VLLM, "--engine.sleep", "true", "--engine.engine_args.gpu_memory_utilization", "0.99"), 1
        ).best
        run, vllm = split.processes
        assert run.limit == pytest.approx(0.97 * 80e9)
        assert vllm.limit == pytest.approx(0.97 * 80e9 - run.permanent)
        assert run.permanent > 2 * SHAPE.parameters

    def test_engines_are_on_the_gpus_after_those_that_learn(self) -> None:
        for split in planned(math(*VLLM), 4).splits:
            first = split.learning
            assert split.keys["engine.devices"] == [str(number) for number in range(first, first + split.sampling)]

    def test_adapters_that_do_not_learn_are_not_published(self) -> None:
        frozen = ("--policies.reasoner.train", "frozen", "--policies.reasoner.adapter", "somewhere")
        split = planned(math(*VLLM, *frozen), 2).best
        assert seconds(split, "publishing") == pytest.approx(4 * ADAPTER / (0.6 * 450e9))


class TestRoom:
    def test_on_a_processor_what_is_the_host_s_is_the_card_s_too(self) -> None:
        parts = (MemoryComponent("a", 5.0), MemoryComponent("b", 7.0, on_host=True))
        assert ProcessMemory("p", parts, 10.0, "cpu").excess == 2.0
        assert ProcessMemory("p", parts, 10.0, "h100").excess == -5.0
        assert not ProcessMemory("p", parts, 10.0, "cpu").fits

    def test_some_of_a_card_is_left_to_what_an_allocator_rounds(self) -> None:
        assert planned(math()).best.processes[0].limit == pytest.approx(0.97 * 80e9)
