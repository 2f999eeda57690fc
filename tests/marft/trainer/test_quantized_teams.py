"""Teams on a base in 4 bits: they learn, resume to the bit, sample in another process, and are exported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.device_mesh import DeviceMesh

from marft.config.bundled import bundled_models
from marft.config.load import parse_recipe
from marft.inference.subprocess_engine.launch import vllm_init_message
from marft.models.adapter_files import save_adapter
from marft.models.policy_registry import PolicyRegistry
from marft.models.quantization import QuantizedLinear, count_quantized_weights, replace_by_dequantized
from marft.runs.export.exporter import export_run
from marft.runs.export.manifest import PolicyEntry, load_export
from marft.runs.export.recipe import ExportRecipe
from marft.runs.export.weights import WeightExporter
from marft.runs.state import CheckpointRecord
from tests.exports import merged_logits
from tests.helpers import recipe, settings
from tests.marft.trainer.test_ranks_runs import trained, weights
from tests.packed_checkpoints import pack

pytest.importorskip("bitsandbytes")
REWARDED = ("--rewards", "[{ name = 'format', pattern = '[0-4] ' }]")
NF4 = ("--models.base.quantization", "nf4", "--models.base.quantization_block_size", "32")


@pytest.fixture
def packed(tmp_path: Path) -> Callable[[str], Path]:
    def make(way: str) -> Path:
        folder = Path(shutil.copytree(bundled_models()["tiny"], tmp_path / "model"))
        pack(folder, way)
        return folder

    return make


def base_of(model: Path | str, tmp_path: Path, *overrides: str) -> PolicyRegistry:
    return PolicyRegistry(settings(model, tmp_path, *overrides))


@pytest.mark.slow
class TestTrained:
    @pytest.mark.parametrize("way", ["nf4", "gptq in any order"])
    def test_a_team_resumes_to_the_bit(self, way: str, packed: Callable[[str], Path], tmp_path: Path) -> None:
        model, overrides = ("tiny", NF4) if way == "nf4" else (packed(way), ())
        whole, _ = trained(settings(model, tmp_path / "whole", *overrides, *REWARDED))
        stopped = settings(model, tmp_path / "parts", *overrides, *REWARDED)
        trained(stopped, stop=1)
        again, _ = trained(stopped, resume=True)
        wanted = weights(whole, 2)
        assert any("lora_B" in name and tensor.any() for name, tensor in wanted.items())
        found = weights(again, 2)
        assert found.keys() == wanted.keys()
        assert all((found[name] == tensor).all() for name, tensor in wanted.items())
        for metrics in whole.read_metrics():
            assert metrics["log_prob_difference_max"] < 1e-4

    def test_it_learns_to_write_a_digit(self, tmp_path: Path) -> None:
        longer = "--training.steps", "8", "--rollout.samples_per_task", "8"
        folder, _ = trained(
            settings("tiny", tmp_path, *NF4, *REWARDED, *longer, "--algorithm.optimizer.learning_rate", "0.02")
        )
        rewards = [
            sum(metrics[f"agents/{role}/own_reward"] for role in ("reasoner", "actor"))
            for metrics in folder.read_metrics()
        ]
        assert sum(rewards[-2:]) > sum(rewards[:2]) + 1

    def test_another_process_samples_with_the_same_weights(self, tmp_path: Path) -> None:
        folder, _ = trained(settings("tiny", tmp_path, *NF4, *REWARDED, "--engine.kind", "process"))
        assert all(metrics["log_prob_difference_max"] < 1e-4 for metrics in folder.read_metrics())

    def test_ranks_learn_as_one_does(self, tmp_path: Path) -> None:
        gentle = "--algorithm.optimizer.learning_rate", "1e-3", "--algorithm.optimizer.epsilon", "1e-4"
        one, _ = trained(settings("tiny", tmp_path / "one", *NF4, *REWARDED, *gentle))
        two, _ = trained(settings("tiny", tmp_path / "two", *NF4, *REWARDED, *gentle, "--training.ranks", "2"))
        wanted = weights(one, 2)
        for name, tensor in weights(two, 2).items():
            if "lora" in name:
                assert abs(tensor - wanted[name]).max() < 1e-5, name

    def test_an_export_names_the_base_and_merges_into_its_dequantized_weights(self, tmp_path: Path) -> None:
        folder, _ = trained(settings("tiny", tmp_path, *NF4, *REWARDED))
        export = load_export(export_run(folder, "last", tmp_path / "team", merged=True))
        assert export.manifest.policies["actor"].path
        models = PolicyRegistry(folder.settings())
        backbone = models.policies["actor"].backbone
        models.load_policy("actor", folder.checkpoints / "step_000002" / "policies" / "actor")
        ids = list(range(5, 60))
        assert count_quantized_weights(backbone.model)
        replace_by_dequantized(backbone.model)
        assert torch.allclose(merged_logits(export, "actor", ids), logits(models, "actor", ids), atol=1e-3)


@torch.no_grad()
def logits(models: PolicyRegistry, policy: str, ids: list[int]) -> torch.Tensor:
    from marft.models.packed_rows import PackedRows

    backbone = models.policies[policy].backbone
    rows = PackedRows.from_rows([torch.tensor(ids, dtype=torch.int32).numpy()], [policy], torch.device("cpu"))
    return backbone.compute_logits(backbone.hidden_states(rows), None)


class TestRefused:
    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (("--policies.actor.train", "full"), "policies.actor: train = 'full' needs an unquantized base"),
            (("--training.ranks", "2", "--training.shard", "true"), "training.shard: models.base has 4-bit weights"),
        ],
    )
    def test_recipes(self, overrides: tuple[str, ...], message: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=message):
            settings("tiny", tmp_path, *NF4, *overrides)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("quantization", "nf4"),
            ("quantization_block_size", 128),
            ("double_quantization", False),
            ("router_replay", True),
        ],
    )
    def test_a_key_without_meaning_for_a_remote_model(self, key: str, value: object, tmp_path: Path) -> None:
        table = recipe("tiny", tmp_path)
        table["models"]["far"] = {"path": "x", key: value, "endpoint": {"url": "http://127.0.0.1:1/v1"}}
        table["policies"]["actor"] = {"model": "far", "train": "frozen"}
        with pytest.raises(ValueError, match=rf"models.far.{key}: means something for a local model alone"):
            parse_recipe(table)

    def test_what_only_the_checkpoint_says(self, packed: Callable[[str], Path], tmp_path: Path) -> None:
        folder = packed("awq")
        with pytest.raises(ValueError, match=r"policies.actor: train = 'full' needs an unquantized base.*lora"):
            base_of(folder, tmp_path, "--policies.actor.train", "full")
        with pytest.raises(ValueError, match=r"training.shard: models.base has 4-bit weights.*shard = false"):
            base_of(folder, tmp_path).shard(lambda _: cast("DeviceMesh", None))


def test_a_merge_has_the_weights_that_the_adapter_was_trained_on(tmp_path: Path) -> None:
    """A new adapter changes nothing; float32 weights that are rounded to bfloat16 before NF4 get other codes."""
    run = settings("tiny", tmp_path, *NF4, "--models.base.dtype", "bfloat16")
    models = PolicyRegistry(run)
    policy = models.policies["actor"]
    save_adapter(policy.backbone.adapters("actor"), policy.lora, "tiny", tmp_path / "adapter")
    exporter = WeightExporter(run, cast("CheckpointRecord", None), cast("ExportRecipe", None), tmp_path)
    exporter._merge(PolicyEntry(kind="adapter", model="base", path="adapter"), tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    layers = {
        name: layer for name, layer in policy.backbone.model.named_modules() if isinstance(layer, QuantizedLinear)
    }
    assert len(layers) > 3
    for name, layer in layers.items():
        assert torch.equal(merged[f"{name.removesuffix('.base')}.weight"], layer.weight.float()), name


def test_other_base_weights_have_another_digest(tmp_path: Path) -> None:
    digests = {
        base_of("tiny", tmp_path, *overrides).compute_digests()["models.base"]
        for overrides in ((), NF4, (*NF4, "--models.base.double_quantization", "false"))
    }
    assert len(digests) == 3


def test_experts_that_stay_whole_are_told(tmp_path: Path, random_experts: Path) -> None:
    targets = "--policies.actor.lora.target_modules", "['q_proj']", "--policies.reasoner.train", "frozen"
    (warning,) = base_of(random_experts, tmp_path, *NF4, *targets).slow_model_warnings()
    assert "of its layers' weights are experts, which are not quantized and stay in float32" in warning


@pytest.fixture
def random_experts(tmp_path: Path) -> Path:
    import json

    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.families import FAMILY

    folder = Path(shutil.copytree(bundled_models()["tiny"], tmp_path / "experts"))
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    config: Any = FAMILY["Qwen 3 with experts"].small_config()
    config.vocab_size = vocabulary
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_dict())).save_pretrained(folder)
    return folder


def test_vllm_quantizes_as_the_learner_does(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, *NF4, "--engine.kind", "vllm")
    engine: Any = run.engine
    assert vllm_init_message(engine, run, PolicyRegistry(run), ["actor"]).options == {"quantization": "bitsandbytes"}
    chosen = settings("tiny", tmp_path, *NF4, "--engine", "{kind = 'vllm', engine_args = {quantization = 'fp8'}}")
    engine = chosen.engine
    assert vllm_init_message(engine, chosen, PolicyRegistry(chosen), ["actor"]).options == {"quantization": "fp8"}
