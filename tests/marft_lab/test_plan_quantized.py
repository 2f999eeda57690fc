"""Plans of bases in 4 bits: bytes are those of the loaded layers, dequantization takes time, and the change is advised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from marft.config.models import ModelSettings
from marft.models.device_specs import Precision, find_device_spec
from marft.models.loader import load_backbone
from marft.models.model_sizes import ModelSizes, find_common_sizes, find_sizes, packed_bits
from marft_lab.planning.changes import suggest_changes
from marft_lab.planning.plan import CapacityPlan
from tests.families import random_model
from tests.marft_lab.test_planning import math, planned, taken
from tests.packed_checkpoints import GROUP, pack

NF4 = ("--models.base.quantization", "nf4")
VLLM = ("--engine.kind", "vllm", "--rollout.max_policy_lag", "1")


def small(folder: Path) -> Path:
    config = LlamaConfig(
        vocab_size=64, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    return random_model(config, folder)


def held(model: ModelSettings, dtype: torch.dtype) -> float:
    backbone = load_backbone(model, torch.device("cpu"), dtype)
    tables = sum(4 * (16 + 256 + 1) for name, _ in backbone.model.named_buffers() if name.endswith(".values"))
    unplanned = sum(
        tensor.numel() * tensor.element_size() for name, tensor in backbone.decoder.rotary_emb.named_buffers()
    )
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) - tables - unplanned


def sizes_of(folder: Path, model: ModelSettings) -> ModelSizes:
    return find_sizes("base", model.model_copy(update={"path": str(folder)}))


def test_bytes_of_nf4_are_counted_to_the_byte(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    model = ModelSettings(path=str(small(tmp_path)), quantization="nf4", dtype="float32")
    precision = Precision.from_settings(model, find_device_spec("cpu"))
    assert held(model, torch.float32) == pytest.approx(precision.weight_bytes(sizes_of(tmp_path, model)), rel=1e-3)


@pytest.mark.parametrize("way", ["gptq", "awq"])
def test_bytes_of_packed_checkpoints_are_counted_to_the_byte(way: str, tmp_path: Path) -> None:
    pack(small(tmp_path), way)
    model = ModelSettings(path=str(tmp_path), dtype="float32")
    sizes = sizes_of(tmp_path, model)
    assert sizes.layer_bits == packed_bits(GROUP)
    precision = Precision.from_settings(model, find_device_spec("cpu"))
    assert held(model, torch.float32) == precision.weight_bytes(sizes)


def test_names_of_packed_checkpoints_are_known() -> None:
    for name in ("Qwen/Qwen2.5-14B-Instruct-AWQ", "Qwen/Qwen2.5-14B-Instruct-GPTQ-Int4"):
        sizes = find_common_sizes(name)
        assert sizes is not None
        assert sizes.layer_bits == packed_bits(128) == 4.1875
        assert Precision(True, False).weight_bytes(sizes) == pytest.approx(10e9, rel=0.02)
    plain = find_common_sizes("Qwen/Qwen2.5-14B-Instruct")
    assert plain is not None
    assert not plain.layer_bits


def test_a_configuration_without_4_bits_is_planned_as_it_is_loaded(tmp_path: Path) -> None:
    small(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())
    for config in ({"quant_method": "fp8"}, "none", None):
        (tmp_path / "config.json").write_text(json.dumps({**table, "quantization_config": config}))
        assert not sizes_of(tmp_path, ModelSettings(path="x")).layer_bits


def seconds(made: CapacityPlan, phase: str) -> float:
    return sum(each.seconds for each in made.best.phases if each.name == phase)


class TestATeamOf14B:
    def test_fits_24_gb_in_4_bits_alone(self) -> None:
        cut = "--models.base.gradient_checkpointing", "true", "--training.tokens_per_micro_batch", "2048"
        cut += "--engine.max_batch_size", "16", "--engine.prefix_cache_mb", "0"
        assert not planned(math(*cut, size="14B"), "rtx4090").fits
        made = planned(math(*cut, *NF4, size="14B"), "rtx4090")
        assert made.fits
        process = made.best.processes[0]
        assert 9e9 < taken(process, "weights of base", "4.13 bits") < 10e9
        assert taken(process, "dequantized layer") == 2 * 5120 * 13_824

    def test_is_advised_where_it_is_enough(self) -> None:
        keys = [change.keys for change in suggest_changes(planned(math(size="14B"), "l40s"))]
        assert {"models.base.quantization": "nf4"} in keys
        full = math("--policies.actor.train", "full", size="14B")
        assert not any("models.base.quantization" in change.keys for change in suggest_changes(planned(full, "h100")))

    @pytest.mark.parametrize("gpus", [2, 4])
    def test_is_not_sharded(self, gpus: int) -> None:
        made = planned(math(*NF4, size="32B"), "rtx4090", gpus)
        assert not made.fits
        assert not any("training.shard" in split.keys for split in made.splits)
        ranks = "--training.ranks", str(gpus)
        assert not any(
            "training.shard" in it.keys for it in suggest_changes(planned(math(*NF4, *ranks), "rtx4090", gpus))
        )

    def test_dequantization_takes_time_in_every_pass(self) -> None:
        plain, packed = planned(math(size="14B")), planned(math(*NF4, size="14B"))
        again = planned(math(*NF4, "--models.base.gradient_checkpointing", "true", size="14B"))
        for phase in ("writing", "update"):
            assert seconds(packed, phase) > seconds(plain, phase)
        assert seconds(again, "update") > seconds(packed, "update")

    def test_vllm_reads_packed_weights(self) -> None:
        plain, packed = planned(math(*VLLM, size="14B"), gpus=2), planned(math(*VLLM, *NF4, size="14B"), gpus=2)
        assert seconds(packed, "writing") < seconds(plain, "writing")

    def test_another_process_has_them_packed_too(self) -> None:
        process = "--engine.kind", "process"
        made = planned(math(*NF4, *process, size="14B"), "h100", 2)
        engine = next(each for each in made.best.processes if each.name.startswith("process"))
        assert 9e9 < taken(engine, "weights of") < 13e9
        assert taken(engine, "dequantized layer") > 0
