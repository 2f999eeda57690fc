"""Parts of a learner's bytes, by hand, and what is advised where they are too many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from marft.config import RunSettings, load_recipe
from marft.models.device_specs import Precision, find_device_spec
from marft.models.model_sizes import COMMON_MODELS
from marft_lab.cli.planning import as_json
from marft_lab.planning import changes as advice
from marft_lab.planning.activations import (
    ForwardPass,
    chunk_rows,
    head_peak_bytes,
    layer_gradient_bytes,
    peak_extra_bytes,
    planned_bytes,
    saved_layer_bytes_per_token,
)
from marft_lab.planning.memory import MemoryComponent, PlanContext, ProcessMemory, forward_passes
from marft_lab.planning.placement import RankPlacement, ShardedWeights, full_gather_bytes, peak_gathered_bytes
from marft_lab.planning.plan import CapacityPlan, PlanRequest, Split, make_plan
from marft_lab.planning.timing import Phase
from marft_lab.planning.workload import KnownLengths, Lengths, PolicyWorkload

SHAPE = COMMON_MODELS["qwen2.5-3b"]
ADAPTER = SHAPE.adapter_parameters(8, ("q_proj", "v_proj"))
VLLM = ("--engine.kind", "vllm")
LENGTHS = KnownLengths(prompt=150, action=50, longest=80)


def math(*overrides: str, size: str = "3B") -> RunSettings:
    return load_recipe("math_dual", ["--models.base.path", f"Qwen/Qwen2.5-{size}-Instruct", *overrides])


def planned(run: RunSettings, gpus: int = 1, gpu: str = "h100", **asked: Any) -> CapacityPlan:
    return make_plan(run, PlanRequest(gpus, find_device_spec(gpu), **asked))


def taken(process: ProcessMemory, *words: str) -> float:
    return sum(part.bytes for part in process.parts if all(word in part.name for word in words))


def one_pass(train: str, on_cpu: bool = False) -> ForwardPass:
    policy = PolicyWorkload("p", "base", train, 8, ("q_proj", "v_proj"), 4, Lengths(150, 50, 50), True)
    return ForwardPass(SHAPE, Precision(train != "full", on_cpu), 4000, 1000, (policy,))


class TestParts:
    def test_an_adapter_that_does_not_learn_has_no_moments(self) -> None:
        words = ("--policies.reasoner.train", "frozen", "--policies.reasoner.adapter", "somewhere")
        process = planned(math(*words)).best.processes[0]
        assert taken(process, "adapter of reasoner") == 4 * ADAPTER
        assert taken(process, "optimizer") == taken(process, "optimizer of actor") == 8 * ADAPTER
        assert taken(process, "gradient of") == taken(process, "gradient of actor")

    def test_a_pool_has_an_adapter_like_its_policy_s_for_each_version(self) -> None:
        words = ["--models.base.path", "Qwen/Qwen2.5-3B-Instruct", "--policies.player.lora.rank", "4"]
        process = planned(load_recipe("textarena_league", words)).best.processes[0]
        assert taken(process, "adapter of rival, 4 versions") == 4 * taken(process, "adapter of player") > 0
        assert taken(process, "optimizer") == taken(process, "optimizer of player")

    def test_a_step_that_may_be_taken_back_keeps_weights_and_moments(self) -> None:
        process = planned(math("--algorithm.team_kl", "0.01")).best.processes[0]
        assert taken(process, "snapshot of actor") == 12 * ADAPTER

    @pytest.mark.parametrize(("heads", "count"), [("team", 1), ("agent", 2)])
    def test_a_critic_has_sixteen_bytes_a_number_of_each_head(self, heads: str, count: int) -> None:
        words = ("--algorithm.critic.heads", heads, "--algorithm.critic.hidden_size", "10")
        process = planned(math(*words)).best.processes[0]
        assert [p.bytes for p in process.parts if p.name == "critic"] == [16 * count * (2048 * 10 + 10 * 10 + 30 + 1)]

    @pytest.mark.parametrize(("level", "decisions"), [("action", 8), ("token", 8 * 50)])
    @pytest.mark.parametrize("ranks", [1, 2])
    def test_what_a_critic_reads_of_each_decision_is_divided_among_ranks(
        self, level: str, decisions: int, ranks: int
    ) -> None:
        words = ("--algorithm.level", level, "--training.ranks", f"{ranks}")
        process = planned(math(*words), ranks, lengths=LENGTHS).best.processes[0]
        assert taken(process, "what the critic reads") == 4 * 2048 * decisions / ranks

    def test_the_largest_pass_decides_activations(self) -> None:
        run = math("--policies.actor.train", "full")
        made = planned(run, lengths=LENGTHS)
        place = PlanContext(run, {"base": SHAPE}, made.workload, find_device_spec("h100"))
        sums = sorted(planned_bytes(one) + peak_extra_bytes(one) for one in forward_passes(place, RankPlacement(), 0))
        assert sums[0] < sums[1]
        process = made.best.processes[0]
        assert taken(process, "activations") + taken(process, "logits and gradients") == pytest.approx(sums[1])

    def test_a_layer_that_is_computed_again_is_there_while_it_is_gone_back_through(self) -> None:
        once = one_pass("lora")
        again = replace(once, gradient_checkpointing=True)
        assert layer_gradient_bytes(again) - layer_gradient_bytes(once) == pytest.approx(
            4000 * saved_layer_bytes_per_token(again)
        )

    def test_a_chunk_s_logits_are_there_four_times_and_six_where_the_head_learns(self) -> None:
        frozen, whole = one_pass("lora"), one_pass("full")
        logits = 4 * chunk_rows(frozen) * SHAPE.vocab_size
        assert head_peak_bytes(frozen) == 4 * logits + 2 * 4 * 1000 * 2048
        assert head_peak_bytes(whole) == 6 * logits + 4 * SHAPE.head_parameters

    def test_on_a_processor_what_is_held_in_half_are_the_layers_matrices(self) -> None:
        rest = SHAPE.parameters - SHAPE.matrix_parameters
        assert Precision(True, on_cpu=True).weight_bytes(SHAPE) == 2 * SHAPE.matrix_parameters + 4 * rest
        assert Precision(True, on_cpu=True).bytes_per_element == 4

    def test_what_is_gathered_is_a_layer_with_its_buffer_and_where_it_learns_its_gradient(self) -> None:
        for trained, layers in ((False, 2), (True, 3)):
            one = ShardedWeights("base", SHAPE, 4, 4, trained)
            root = 4 * (SHAPE.head_parameters + SHAPE.hidden_size)  # its head is its embeddings
            layer = (4 * SHAPE.parameters - root) / 36
            assert peak_gathered_bytes([one]) == pytest.approx(2 * root + layers * layer)
            assert full_gather_bytes([one]) == pytest.approx(4 * SHAPE.parameters + layer)

    def test_programs_are_told_the_host_s_bytes_and_the_card_s_apart(self) -> None:
        made = planned(math())
        (process,) = made.best.processes
        (told,) = as_json(made, [])["best"]["processes"]
        assert (told["bytes"], told["host_bytes"]) == (process.on_card, process.on_host)


def test_the_best_split_fits_though_one_that_does_not_is_faster() -> None:
    def split(seconds: float, over: float) -> Split:
        return Split(
            1,
            1,
            (ProcessMemory("p", (MemoryComponent("a", 10.0 + over),), 10.0, "h100"),),
            (Phase("x", seconds, "learning"),),
            0,
        )

    made = planned(math())
    fast, slow, slower = split(1.0, 2.0), split(2.0, 0.0), split(3.0, -1.0)
    assert replace(made, splits=(fast, slower, slow)).best is slow
    assert replace(made, splits=(fast, split(0.5, 9.0))).best.seconds == 0.5


@dataclass(frozen=True)
class Tried:
    """A plan in whose place there are only the bytes that it is over by."""

    run: Any
    request: Any
    over: float

    @property
    def fits(self) -> bool:
        return self.over <= 0

    @property
    def splits(self) -> Sequence[Any]:
        return [SimpleNamespace(processes=[SimpleNamespace(excess=self.over)])]


class TestAdvice:
    """Where single changes are not enough."""

    @pytest.fixture
    def advised(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def advised(knobs: Sequence[Sequence[Mapping[str, Any]]], worth: Mapping[str, float], over: float) -> Any:
            def planned(run: Any, keys: Mapping[str, Any], ask: Any) -> Tried:
                return Tried(run, ask, over - sum(worth[key] * value for key, value in keys.items()))

            def each(*_: object) -> Iterator[Sequence[Mapping[str, Any]]]:
                yield from knobs

            monkeypatch.setattr(advice, "_change_options", each)
            monkeypatch.setattr(advice, "_plan_changed", planned)
            run: Any = SimpleNamespace()
            return advice.suggest_changes(Tried(run, SimpleNamespace(gpus=64), over))  # type: ignore[arg-type]

        return advised

    def test_the_mildest_value_that_is_enough_is_named_of_each_key(self, advised: Any) -> None:
        found = advised([[{"a": 1}, {"a": 2}, {"a": 3}], [{"b": 1}]], {"a": 3, "b": 1}, over=5)
        assert [one.keys for one in found] == [{"a": 2}]
        assert all(one.plan.fits for one in found)

    def test_several_that_are_enough_only_together_are_named_together(self, advised: Any) -> None:
        (found,) = advised([[{"a": 1}, {"a": 2}], [{"b": 1}, {"b": 2}]], {"a": 3, "b": 1}, over=7)
        assert (found.keys, found.plan.fits) == ({"a": 2, "b": 1}, True)

    def test_what_makes_it_worse_is_not_among_them(self, advised: Any) -> None:
        (found,) = advised([[{"worse": 1}], [{"a": 1}], [{"b": 1}]], {"worse": -1, "a": 3, "b": 4}, over=7)
        assert found.keys == {"a": 1, "b": 1}

    def test_nor_is_what_it_fits_without(self, advised: Any) -> None:
        (found,) = advised([[{"little": 1}], [{"a": 1}], [{"b": 1}]], {"little": 1, "a": 3, "b": 4}, over=7)
        assert found.keys == {"a": 1, "b": 1}

    def test_nothing_is_named_where_all_together_are_not_enough(self, advised: Any) -> None:
        assert advised([[{"a": 1}], [{"b": 1}]], {"a": 3, "b": 1}, over=7) == []

    def test_ranks_are_advised_on_gpus_that_no_engine_is_on(self) -> None:
        apart = math(*VLLM, "--training.ranks", "2")
        assert advice._more_ranks(apart, 4) == [{"training.ranks": 3}]
        here = math("--training.ranks", "2")
        assert advice._more_ranks(here, 4) == [{"training.ranks": 3}, {"training.ranks": 4}]
