"""Plans: sizes are those of the models, bytes and seconds follow the recipe, and what is advised has been planned."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.config import RunSettings, load_recipe
from marft.config.bundled import bundled_models, bundled_names, bundled_recipe
from marft.config.models import ModelSettings
from marft.models.device_specs import DEVICE_SPECS, find_device_spec
from marft.models.model_sizes import COMMON_MODELS, find_common_sizes, find_sizes, parse_sizes
from marft_lab.cli.planning import as_json, run_plan
from marft_lab.planning.changes import suggest_changes
from marft_lab.planning.memory import ProcessMemory
from marft_lab.planning.plan import CapacityPlan, PlanRequest, make_plan
from marft_lab.planning.timing import Efficiencies
from marft_lab.planning.workload import KnownLengths, compute_workload

PUBLISHED = {  # parameters, as the models' cards and safetensors' headers on the hub have them
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-Coder-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
}
VLLM = ("--engine.kind", "vllm")


def math(*overrides: str, size: str = "3B") -> RunSettings:
    return load_recipe("math_dual", ["--models.base.path", f"Qwen/Qwen2.5-{size}-Instruct", *overrides])


def planned(run: RunSettings, gpu: str = "h100", gpus: int = 1, **asked: Any) -> CapacityPlan:
    return make_plan(run, PlanRequest(gpus, find_device_spec(gpu), **asked))


def taken(process: ProcessMemory, *words: str) -> float:
    return sum(part.bytes for part in process.parts if all(word in part.name for word in words))


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_known_models_have_the_parameters_that_were_published(name: str, parameters: int) -> None:
    shape = find_common_sizes(name)
    assert shape is not None
    assert shape.parameters == parameters


def test_a_configuration_says_the_same_as_the_name() -> None:
    table = {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False,
    }  # fmt: skip
    assert parse_sizes(table, "config") == COMMON_MODELS["qwen2.5-7b"]


def test_sizes_that_are_not_known_are_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"models.base.path: .*--model-config FILE"):
        find_sizes("base", ModelSettings(path="somebody/model-of-mine"))
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ValueError, match=r"not of 'mamba'; --model-config"):
        find_sizes("base", ModelSettings(path=str(tmp_path)))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=r"'num_attention_heads' is missing"):
        find_sizes("base", ModelSettings(path=str(tmp_path)))
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ValueError, match="cannot read"):
        find_sizes("base", ModelSettings(path="x/y"), tmp_path)


def test_a_given_configuration_takes_the_place_of_the_model_s() -> None:
    shape = find_sizes("base", ModelSettings(path="somebody/model-of-mine"), bundled_models()["tiny"])
    assert shape == find_sizes("base", ModelSettings(path="tiny"))


def test_a_lora_s_numbers_are_those_of_its_two_matrices() -> None:
    shape = COMMON_MODELS["qwen2.5-3b"]
    assert shape.adapter_parameters(8, ("q_proj", "v_proj")) == 36 * 8 * (2048 + 2048 + 2048 + 256)
    with pytest.raises(ValueError, match="no linear layer is called 'w1'"):
        shape.adapter_parameters(8, ("w1",))


@pytest.mark.parametrize("size", ["0.5B", "3B", "7B", "32B"])
@pytest.mark.parametrize("engine", [(), VLLM])
def test_every_size_is_planned_on_eight_gpus(size: str, engine: tuple[str, ...]) -> None:
    made = planned(math(*engine, size=size), gpus=8)
    run = made.best.processes[0]
    shape = COMMON_MODELS[f"qwen2.5-{size.casefold()}"]
    shared = made.best.learning if made.best.keys.get("training.shard") else 1
    assert taken(run, "weights of base") == pytest.approx(2 * shape.parameters / shared)
    assert made.best.seconds > 0
    assert (len(made.splits) == 7) == bool(engine)
    assert made.fits or suggest_changes(made)


def test_an_optimizer_has_twelve_bytes_a_number_and_the_host_a_copy() -> None:
    made = planned(math())
    run, numbers = made.best.processes[0], 2 * COMMON_MODELS["qwen2.5-3b"].adapter_parameters(8, ("q_proj", "v_proj"))
    assert taken(run, "adapter of") == 4 * numbers
    assert taken(run, "optimizer of") == 8 * numbers
    assert taken(run, "copy of what learns") == 12 * numbers


def test_where_b_learns_alone_its_numbers_alone_have_an_optimizer() -> None:
    halves = [f"--policies.{name}.lora.trained_matrices" for name in ("reasoner", "actor")]
    run = math(*(word for key in halves for word in (key, "B")))
    process, shape = planned(run).best.processes[0], COMMON_MODELS["qwen2.5-3b"]
    both, b = (2 * shape.adapter_parameters(8, ("q_proj", "v_proj"), half) for half in (False, True))
    assert b == 2 * shape.layers * 8 * (shape.query_dim + shape.key_dim)
    assert taken(process, "adapter of") == 4 * both
    assert taken(process, "optimizer of") == 8 * b
    assert taken(process, "copy of what learns") == 12 * b


@pytest.mark.parametrize(("reference", "copies"), [("start", 1), ("base", 0), ("none", 0)])
def test_a_reference_that_is_a_copy_is_counted(reference: str, copies: int) -> None:
    run = math(
        "--algorithm.name", "dpo", "--algorithm.objective.reference", reference, "--rollout.samples_per_task", "4"
    )
    process = planned(run).best.processes[0]
    adapter = taken(process, "adapter of")
    assert taken(process, "reference of") == copies * adapter
    assert taken(process, "while its reference is scored") == copies * adapter


@pytest.mark.parametrize(("card", "policy", "for_kl"), [("h100", 4 + 2, 0), ("cpu", 4, 4)])
def test_whole_weights_are_masters_and_their_rounding_and_on_a_cpu_float32(card: str, policy: int, for_kl: int) -> None:
    run = math("--policies.reasoner.train", "full", "--models.base.dtype", "bfloat16")
    process, numbers = planned(run, card).best.processes[0], COMMON_MODELS["qwen2.5-3b"].parameters
    assert taken(process, "base in float32") == for_kl * numbers
    assert taken(process, "weights of reasoner") == policy * numbers
    assert taken(process, "optimizer of reasoner") == 8 * numbers
    assert taken(process, "gradient of reasoner") == 4 * numbers


def test_memory_grows_with_a_micro_batch_and_not_with_the_vocabulary_times_tokens() -> None:
    known = KnownLengths(prompt=256, action=256, longest=256)
    small, large = (
        planned(
            load_recipe("math_dual", ["--training.tokens_per_micro_batch", tokens, "--rollout.tasks_per_step", "512"]),
            lengths=known,
        ).best.processes[0]
        for tokens in ("2048", "4096")
    )
    assert taken(large, "activations") == pytest.approx(2 * taken(small, "activations"))
    logits = taken(large, "logits")
    assert logits < 4096 * COMMON_MODELS["qwen2.5-3b"].vocab_size * 4 / 2


def test_what_is_advised_fits_when_it_is_planned_again() -> None:
    made = planned(math(size="7B"), "rtx4090")
    assert not made.fits
    found = suggest_changes(made)
    assert found
    for one in found:
        again = load_recipe(
            "math_dual",
            [
                "--models.base.path",
                "Qwen/Qwen2.5-7B-Instruct",
                *(w for k, v in one.keys.items() for w in (f"--{k}", _toml(v))),
            ],
        )
        assert planned(again, "rtx4090", one.gpus).fits
        assert any(
            keys in str(one.keys)
            for keys in ("tokens_per_micro_batch", "gradient_checkpointing", "max_batch_size", "quantization")
        )


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_a_plan_that_fits_is_advised_nothing() -> None:
    assert suggest_changes(planned(math())) == []


def test_more_gpus_are_named_where_nothing_else_is_enough() -> None:
    made = planned(math(*VLLM, "--models.base.gradient_checkpointing", "true", size="32B"))
    assert not made.fits
    assert [one.gpus for one in suggest_changes(made)] == [2]


def test_a_model_that_no_card_holds_whole_is_advised_nothing() -> None:
    made = planned(math(*VLLM, "--training.ranks", "4", size="72B"), "a100-80", 5)
    assert not made.fits
    assert suggest_changes(made) == []


def test_without_a_lag_a_step_is_the_sum_of_its_sides_and_with_one_the_longer() -> None:
    run = math(*VLLM)
    for split in planned(run, gpus=4, lag=0).splits:
        assert split.seconds == pytest.approx(sum(phase.seconds for phase in split.phases))
    for split in planned(run, gpus=4, lag=1).splits:
        sides = [sum(p.seconds for p in split.phases if p.side == side) for side in ("sampling", "learning")]
        between = sum(p.seconds for p in split.phases if p.side == "publishing")
        assert split.seconds == pytest.approx(max(sides) + between)


def test_a_lag_that_was_asked_for_is_among_the_keys_to_run_it_so() -> None:
    assert planned(math(*VLLM), gpus=4, lag=1).best.keys["rollout.max_policy_lag"] == 1
    has_one = math(*VLLM, "--rollout.max_policy_lag", "1")
    assert "rollout.max_policy_lag" not in planned(has_one, gpus=4).best.keys
    assert planned(has_one, gpus=4, lag=0).best.keys["rollout.max_policy_lag"] == 0


def test_a_lag_of_an_engine_that_shares_the_learners_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--lag 1: engine 'local' .* add --engine.kind vllm"):
        planned(math(), gpus=4, lag=1)
    assert planned(math(), gpus=4, lag=0).best.keys["training.ranks"] == 4


@given(st.integers(2, 16), st.integers(0, 2), st.sampled_from(sorted(set(DEVICE_SPECS) - {"cpu"})))
def test_the_best_split_is_no_slower_than_any_that_fits(gpus: int, lag: int, card: str) -> None:
    made = planned(math(*VLLM, "--rollout.tasks_per_step", "64"), card, gpus, lag=lag)
    fitting = [split.seconds for split in made.splits if split.fits]
    assert made.best.seconds == min(fitting or [split.seconds for split in made.splits])
    assert all(split.sampling + split.learning == gpus for split in made.splits)
    assert made.best in made.neighbors


def test_more_cards_of_a_side_take_no_longer() -> None:
    splits = planned(math(*VLLM, "--rollout.tasks_per_step", "256", size="7B"), gpus=16).splits

    def seconds(name: str) -> list[float]:
        return [sum(p.seconds for p in split.phases if p.name == name) for split in splits]

    assert seconds("writing") == sorted(seconds("writing"), reverse=True)
    assert seconds("update") == sorted(seconds("update"))


def test_lengths_come_from_the_recipe_s_limits_unless_they_are_known() -> None:
    limits = compute_workload(math()).policies[0].lengths
    assert (limits.prompt, limits.action, limits.longest) == (2048 - 512, 512, 512)
    known = compute_workload(math(), KnownLengths(prompt=100, action=50, longest=80)).policies[0].lengths
    assert (known.prompt, known.action, known.longest) == (100, 50, 80)
    sources = [
        compute_workload(math(), one).policies[0].lengths.source
        for one in (KnownLengths(), KnownLengths(prompt=9), KnownLengths(9, 9))
    ]
    assert sources == ["the recipe's limits", "given, else the recipe's limits", "given"]


def test_efficiencies_are_replaced_by_name() -> None:
    assert Efficiencies().with_overrides(["products=0.5", "link=1"]) == replace(Efficiencies(), products=0.5, link=1.0)
    with pytest.raises(ValueError, match="none is called 'product'; did you mean 'products'"):
        Efficiencies().with_overrides(["product=0.5"])
    with pytest.raises(ValueError, match="'-1' is no number above 0"):
        Efficiencies().with_overrides(["link=-1"])


def test_a_faster_card_takes_less_time() -> None:
    assert planned(math(), "h100").best.seconds < planned(math(), "a100-80").best.seconds
    with pytest.raises(ValueError, match="no card is called 'h1000'; did you mean 'h100'"):
        find_device_spec("h1000")
    with pytest.raises(ValueError, match=r"no card is called 'zzz'; known: a100-40, .*, rtx4090$"):
        find_device_spec("zzz")
    assert all(card.source for card in DEVICE_SPECS.values())


def test_json_has_the_bytes_of_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    run_plan(Path("math_dual"), [], PlanRequest(2, find_device_spec("h100")), "json")
    said = json.loads(capsys.readouterr().out)
    assert said["event"] == "plan"
    process = said["best"]["processes"][0]
    always = sum(part["bytes"] for part in process["parts"] if part["when"] == "always" and not part["on_host"])
    assert always < process["bytes"] <= process["room"]
    assert said["fits"] is True


def test_a_plan_is_told_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--models.base.path", "Qwen/Qwen2.5-7B"]
    run_plan(Path("math_dual"), words, PlanRequest(1, find_device_spec("rtx4090"), KnownLengths(action=100), 2.0), "")
    said = capsys.readouterr().out
    assert "weights of base" in said
    assert re.search(r"weights of base +15 ", said)  # GB
    assert "It does not fit." in said
    assert "--models.base.gradient_checkpointing true" in said
    assert "environment" in said


def test_what_is_planned_can_be_told_to_programs() -> None:
    made = planned(math(*VLLM), gpus=4)
    said = as_json(made, [])
    assert json.loads(json.dumps(said)) == said


def test_a_row_is_never_cut_however_small_micro_batches_are() -> None:
    run = load_recipe("math_dual", ["--training.tokens_per_micro_batch", "256", "--rollout.tasks_per_step", "64"])
    small, longer = (
        planned(run, lengths=KnownLengths(prompt=100, action=100, longest=longest)).best.processes[0]
        for longest in (900, 1900)
    )
    assert taken(longer, "activations") == pytest.approx(2 * taken(small, "activations"))  # rows of 1,000 and of 2,000


def test_an_engine_in_process_has_logits_of_all_its_rows_three_times_or_a_forward_over_prompts() -> None:
    run = math("--rollout.tasks_per_step", "64", "--engine.max_batch_size", "256")
    logits = 3 * 4 * 64 * COMMON_MODELS["qwen2.5-3b"].vocab_size  # 64 episodes, whose agents take turns
    short = planned(run, lengths=KnownLengths(prompt=1, action=64, longest=64)).best.processes[0]
    assert taken(short, "sampling on base") == logits


PROMISE = re.compile(r"one GPU with (\d+) GB")


def promised(name: str) -> float | None:
    """Bytes of the GPU that a bundled recipe says it is for."""
    head = re.match(r"(?:#.*\n)+", bundled_recipe(name).read_text(encoding="utf-8"))
    found = PROMISE.search(head[0]) if head else None
    return float(found[1]) * 1e9 if found else None


@pytest.mark.parametrize("name", bundled_names())
def test_a_recipe_fits_the_gpu_that_it_is_said_to_be_for(name: str) -> None:
    run, memory = load_recipe(name), promised(name)
    real = any(model.path not in bundled_models() for model in run.models.values() if model.endpoint is None)
    assert real == (memory is not None), "a recipe with a model of the hub says which GPU it is for"
    if memory is not None:
        assert make_plan(run, PlanRequest(1, replace(DEVICE_SPECS["rtx4090"], memory=memory))).fits


@pytest.mark.parametrize("gpu", ["rtx4090", "a100-40"])
def test_every_advice_can_be_followed(gpu: str) -> None:
    for name in ("math_32b", "math_7b"):
        before = planned(load_recipe(name), gpu)
        assert not before.fits or suggest_changes(before) == []
        for change in suggest_changes(before):
            assert change.plan.fits
