"""Cost of a learning step and of a decode step of each model family, relative to Qwen 3 with the same sizes.

python tools/family_costs.py                    # benchmarks/results/family_costs.json; five minutes on one core
python tools/family_costs.py "Qwen 3.5" Mamba   # these families only
python tools/model_families.py                  # then writes the table in docs/models.md

Every measurement alternates with one of Qwen 3, and the ratio is that of the shortest times, so work beside it on a
shared machine matters little. Models are random and small: hidden size 256, 4 layers, one thread, float32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import numpy as np
import torch
from model_families import COSTS_FILE, MODEL_FAMILIES, ModelFamily, build_backbone, linear_layer_names
from transformers import PreTrainedConfig

from marft.models.backbone import Backbone
from marft.models.decode_cache import new_decode_cache
from marft.models.packed_rows import PackedRows

# sizes by the name of the setting; others stay those of the small members
SIZES = {
    "vocab_size": 512, "vocab_size_per_layer_input": 512, "hidden_size": 256, "n_embd": 256, "intermediate_size": 768,
    "num_hidden_layers": 4, "n_layer": 4, "num_attention_heads": 4, "n_head": 4, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 512, "n_positions": 512, "moe_intermediate_size": 384,
    "shared_expert_intermediate_size": 384, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "mamba_n_heads": 8, "mamba_d_head": 64,
    "mamba_d_state": 64, "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 64, "num_heads": 8,
    "state_size": 16, "kv_lora_rank": 64, "q_lora_rank": 128, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32,
    "v_head_dim": 64, "index_head_dim": 64, "query_pre_attn_scalar": 64, "intermediate_size_mlp": 768,
    "sliding_window": 64,
}  # fmt: skip
ROW_LENGTHS = (60, 110, 80, 150, 96)  # tokens of the rows of a learning step
PROMPT_LENGTHS = (40, 64, 100, 128, 72, 90, 33, 56)
DECODE_STEPS = 12
REPEATS = 9
TARGETS = {"q_proj", "o_proj", "in_proj", "in_proj_qkv", "in_proj_qkvz", "qkv_proj", "q_b_proj"}
FAMILIES = {family.name: family for family in MODEL_FAMILIES}
REFERENCE = FAMILIES["Qwen 3"]


def main() -> None:
    torch.set_num_threads(1)
    costs = json.loads(COSTS_FILE.read_text(encoding="utf-8")) if COSTS_FILE.is_file() else {}
    names = sys.argv[1:] or [family.name for family in MODEL_FAMILIES]
    for name in names:
        cost = measure_cost(FAMILIES[name])
        if cost is not None:
            costs[name] = cost
            print(f"{name}: {cost}", flush=True)
            ordered = {family.name: costs[family.name] for family in MODEL_FAMILIES if family.name in costs}
            COSTS_FILE.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


def measure_cost(family: ModelFamily) -> Mapping[str, float] | None:
    """Return the relative costs of a learning step and of a decode step; None if no forward supports the family."""
    try:
        backbone = build_backbone(family.name, medium_config(family))
    except ValueError:
        return None
    reference = build_backbone(REFERENCE.name, medium_config(REFERENCE))
    return {
        name: round(_compare(step(backbone), step(reference)), 1)
        for name, step in (("learning", learning_step), ("decoding", decode_steps))
    }


def medium_config(family: ModelFamily) -> PreTrainedConfig:
    """Return the configuration of a member with the sizes of :data:`SIZES`."""
    settings = {**family.size, **family.settings}
    depth = settings.get("num_hidden_layers", settings.get("n_layer"))
    sized = {name: SIZES.get(name, value) for name, value in settings.items()}
    for name, value in settings.items():
        if isinstance(value, list) and len(value) == depth:
            sized[name] = list(islice(cycle(value), SIZES["num_hidden_layers"]))
    if settings.get("num_key_value_heads") == settings.get("num_attention_heads") is not None:
        sized["num_key_value_heads"] = sized["num_attention_heads"]
    if "mamba_n_heads" not in sized and "num_heads" in sized:
        sized["state_size"] = 64  # Mamba 2 has larger states than Mamba
    return family.build_config(sized)


def learning_step(backbone: Backbone) -> Callable[[], None]:
    """Return a step that computes the gradients of an adapter on the attention and on the mixers."""
    targets = sorted(set(linear_layer_names(backbone)) & TARGETS)
    if targets:
        backbone.add_adapter("one", 8, 16.0, targets, seed=0)
    else:
        backbone.model.requires_grad_(True)
    rows = [_row(length) for length in ROW_LENGTHS]
    packed = PackedRows.from_rows(rows, ["one" if targets else None] * len(rows), backbone.device)

    def step() -> None:
        hidden = backbone.hidden_states(packed)
        hidden.square().mean().backward()

    return step


def decode_steps(backbone: Backbone) -> Callable[[], None]:
    """Return a function that decodes some tokens for all rows, without the prefill."""
    rows = [_row(length) for length in PROMPT_LENGTHS]
    policies: list[str | None] = [None] * len(rows)
    ids = torch.arange(len(rows))
    with torch.inference_mode():
        cache = new_decode_cache(backbone)
        cache.prefill(PackedRows.from_rows(rows, policies, backbone.device), [[slot] for slot in range(len(rows))])
    lengths = list(PROMPT_LENGTHS)

    @torch.inference_mode()
    def steps() -> None:
        for _ in range(DECODE_STEPS):
            cache.step(ids, lengths, policies)
            lengths[:] = [length + 1 for length in lengths]

    return steps


def _row(length: int) -> Any:
    return (np.arange(length) * 37 % 500).astype(np.int32)


def _compare(step: Callable[[], None], reference: Callable[[], None]) -> float:
    """Return the ratio of the shortest times of two functions, measured alternately."""
    times: dict[Callable[[], None], list[float]] = {step: [], reference: []}
    for _ in range(1 + REPEATS):
        for function in times:
            start = perf_counter()
            function()
            times[function].append(perf_counter() - start)
    return min(times[step]) / min(times[reference])


if __name__ == "__main__":
    main()
