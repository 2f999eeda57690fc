"""What plans say of bytes, held to tensors: models of real sizes on the meta device, small ones that compute."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config
from transformers import masking_utils as masking

from marft.config.algorithm import OptimizerSettings
from marft.models import attention, cpu_products
from marft.models.backbone import Backbone
from marft.models.decode_cache import PackedDecodeCache
from marft.models.device_specs import Precision
from marft.models.model_sizes import COMMON_MODELS, ModelSizes
from marft.models.packed_rows import PackedRows
from marft.trainer.optimizers import PolicyOptimizer
from marft_lab.planning import memory
from marft_lab.planning.activations import ForwardPass, planned_bytes
from marft_lab.planning.workload import Lengths, PolicyWorkload
from tests.nights import BY_NIGHT, some
from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"
LAYERS = 3  # of activations: all are alike
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ROWS = (300, 250, 410, 64)
CONFIGS = {"qwen2.5": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig, "smollm2": LlamaConfig}
CLOSE = 0.04


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    attention.register_attention()


class Flash(torch.autograd.Function):
    """In the place of a GPU's attention, where nothing is computed: it keeps what that keeps (Dao 2023)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out


def configuration(name: str, shape: ModelSizes) -> PreTrainedConfig:
    kind = CONFIGS[name.partition("-")[0]]
    made = kind(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads,
        tie_word_embeddings=shape.tied_embeddings,
    )  # fmt: skip
    if kind is Qwen3Config:
        made.head_dim = shape.head_dim
    return made


def on_meta(name: str, shape: ModelSizes, dtype: torch.dtype = torch.bfloat16) -> Backbone:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            configuration(name, shape), dtype=dtype, attn_implementation=attention.IMPLEMENTATION
        )
    backbone = Backbone(model.eval().requires_grad_(False), 32_768)
    backbone.fp32_residual = backbone.is_half
    return backbone


def size(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", some(["qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-32b", "qwen3-8b", "llama-3-8b", "llama-3.2-1b"])
)
def test_weights_adapters_and_moments_are_counted_to_the_byte(name: str) -> None:
    shape = COMMON_MODELS[name]
    backbone = on_meta(name, shape)
    assert size(backbone.model.parameters()) == Precision(True, False).weight_bytes(shape)
    assert size(on_meta(name, shape, torch.float32).model.parameters()) == Precision(False, False).weight_bytes(shape)
    backbone.add_adapter("policy", 16, 32.0, ALL, seed=0)
    adapters = backbone.adapters("policy").values()
    on_disk = {
        f"{number}.{half}": Parameter(torch.empty_like(tensor, device="meta"))
        for number, adapter in enumerate(adapters)
        for half, tensor in (("a", adapter.a), ("b", adapter.b))
    }
    assert size(on_disk.values()) == 4 * shape.adapter_parameters(16, ALL)
    optimizer = PolicyOptimizer(on_disk, OptimizerSettings(), 1e-4, 1)
    for parameter in on_disk.values():
        parameter.grad = torch.empty_like(parameter)
    optimizer.optimizer.step()
    moments = chain.from_iterable(
        (state["exp_avg"], state["exp_avg_sq"]) for state in optimizer.optimizer.state.values()
    )
    assert size(moments) == 8 * shape.adapter_parameters(16, ALL)


def policy(train: str, targets: tuple[str, ...], name: str) -> PolicyWorkload:
    return PolicyWorkload(name, "base", train, 8 if targets else 0, targets, 1, Lengths(100, 100, 100), True)


def counted_and_planned(
    backbone: Backbone, shape: ModelSizes, targets: tuple[str, ...], owners: int = 1, recomputes: bool = False
) -> tuple[int, float]:
    """Bytes that a forward keeps, and those that a plan says."""
    from tensor_bytes import saved_bytes

    device = backbone.device
    on_cpu = device.type == "cpu"
    names = [f"p{number}" for number in range(owners)]
    for name in names if targets else ():
        backbone.add_adapter(name, 8, 16.0, targets, seed=0)
    if recomputes:
        backbone.checkpoint_activations()
    owned = [names[row * owners // len(ROWS)] if targets else None for row in range(len(ROWS))]
    rows = PackedRows.from_rows([np.arange(n) for n in ROWS], owned, device, 0 if on_cpu else 1024)
    plan = attention.PackedPlan(rows.lengths, torch.device("cpu"), tokens=len(rows.ids))
    for index in ("real", "padded_from", "packed_from", "in_rows"):
        if isinstance(found := getattr(plan, index, None), Tensor):
            setattr(plan, index, found.to(device))
    counted = saved_bytes(lambda: backbone.hidden_states(rows, plan).sum(), backbone.model.parameters())
    train = "lora" if targets else "full"
    one = ForwardPass(
        shape, Precision(backbone.is_half, on_cpu), len(rows.ids), 512, tuple(policy(train, targets, n) for n in names),
        recomputes,
    )  # fmt: skip
    return counted, planned_bytes(one)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-32b", "qwen3-4b", "llama-3-8b"]))
@pytest.mark.parametrize("case", ["lora", "all layers", "two policies", "recomputed", "whole", "whole in float32"])
def test_what_a_forward_keeps_on_a_gpu_is_what_a_plan_says(
    name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "scaled_dot_product_attention", lambda q, k, v, **_: Flash.apply(q, k, v))
    monkeypatch.setattr(masking, "find_packed_sequence_indices", lambda _: None)  # which asks for values
    shape = replace(COMMON_MODELS[name], layers=LAYERS)
    backbone = on_meta(name, shape, torch.float32 if case == "whole in float32" else torch.bfloat16)
    if case.startswith("whole"):
        backbone.model.requires_grad_(True)
    targets = () if case.startswith("whole") else ALL if case == "all layers" else ("q_proj", "v_proj")
    counted, planned = counted_and_planned(
        backbone, shape, targets, 2 if case == "two policies" else 1, case == "recomputed"
    )
    assert planned == pytest.approx(counted, rel=CLOSE)


@pytest.mark.parametrize("case", ["lora", "all layers", "recomputed", "whole"])
@pytest.mark.parametrize("name", ["smollm2", "qwen3"])
def test_what_a_forward_keeps_on_a_cpu_is_what_a_plan_says(name: str, case: str) -> None:
    shape = ModelSizes(LAYERS, 128, 384, 4, 2, 32, 512, tied_embeddings=True, head_norms=name == "qwen3")
    config = configuration(name, shape)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.IMPLEMENTATION)
    backbone = Backbone(model.eval().requires_grad_(case == "whole"), 4096)
    targets = () if case == "whole" else ALL if case == "all layers" else ("q_proj", "v_proj")
    counted, planned = counted_and_planned(backbone, shape, targets, 1, case == "recomputed")
    assert planned == pytest.approx(counted, rel=CLOSE)


@pytest.mark.parametrize("limit", [2**30, 3_000_000], ids=["all", "some"])
@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "smollm2-135m"])
def test_packed_copies_take_the_bytes_that_a_plan_says(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two layers, with half of a small vocabulary's head beyond the limit."""
    monkeypatch.setattr(cpu_products, "MAX_PACKED_BYTES", limit)
    monkeypatch.setattr(memory, "MAX_PACKED_BYTES", limit)
    narrow = {"hidden_size": 256, "intermediate_size": 640, "heads": 4, "key_heads": 2, "head_dim": 64}
    shape = replace(COMMON_MODELS[name], layers=2, vocab_size=600, **narrow)
    model = AutoModelForCausalLM.from_config(configuration(name, shape), attn_implementation=attention.IMPLEMENTATION)
    backbone = Backbone(model.requires_grad_(False).eval(), 64)
    with torch.inference_mode():
        cache = PackedDecodeCache(backbone)
        cache.prefill(PackedRows.from_rows([np.arange(3)], [None], backbone.device), [[0]])
        backbone.compute_logits(cache.step(torch.tensor([5]), [3], [None]), None)
    assert 0 < backbone.packed_weights.nbytes == memory.packed_copy_bytes(shape)
    assert backbone.packed_weights.nbytes <= limit


def test_tensors_are_counted_while_they_live() -> None:
    from tensor_bytes import Counted

    there = torch.zeros(10)
    with Counted([there]) as counted:
        a = torch.ones(100)
        view = a[:50]
        assert counted.now == 440
        del a
        assert counted.now == 440  # the view is of it
        del view
        assert counted.now == 40
        torch.ones(50) + 1
    assert counted.most == 440


def test_published_figures_are_predicted_as_the_committed_table_says() -> None:
    import plan_published

    text = (BENCHMARKS / "results" / "plan_published.md").read_text(encoding="utf-8")
    assert plan_published.table(plan_published.Reached()) in text
    assert plan_published.fit(plan_published.ROWS, plan_published.Reached()) == plan_published.Reached()


@pytest.mark.slow
@BY_NIGHT
def test_a_whole_step_takes_the_bytes_that_are_planned(tmp_path: Path) -> None:
    import plan_memory

    case = plan_memory.CASES["Qwen2, LoRA"] | {"tasks": 4, "batch": 1024, "action": 16}
    plan_memory.save_model(tmp_path, case["kind"], case["sizes"], case["vocabulary"])
    measured = plan_memory.measure(case, tmp_path)
    assert measured["predicted"] == pytest.approx(measured["counted"], rel=0.15)
