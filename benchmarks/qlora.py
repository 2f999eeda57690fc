"""Measure a base in 4 bits: memory, and rates of sampling and learning; and plan the largest teams on one card.

    python benchmarks/qlora.py            # three minutes of one core
    python benchmarks/qlora.py --plan     # only the planned table

The measured base has the shape of SmolLM2-135M and random weights. Two policies train adapters of rank 8 on all linear
layers. Each base runs in a process of its own: it decodes 16 tokens of 8 rows after prompts of 64 tokens, and runs
forward and backward on packed rows of both policies. Seconds are CPU time of one thread, which other load changes
little; the faster of two tries counts. The planned teams are those of ``marft plan``: every agent has its own adapter
of rank 16 on all linear layers, and learns with gradient checkpointing. Writes results/qlora.json and .md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from marft.config.load import parse_recipe
from marft.config.models import ModelSettings
from marft.models.backbone import Backbone
from marft.models.decode_cache import new_decode_cache
from marft.models.device_specs import find_device_spec
from marft.models.half_precision import store_in_half
from marft.models.loader import load_backbone
from marft.models.log_probs import score_tokens
from marft.models.model_sizes import COMMON_MODELS
from marft.models.packed_rows import PackedRows
from marft.models.quantization import QuantizedLinear
from marft_lab.planning.plan import PlanRequest, make_plan
from marft_lab.planning.workload import KnownLengths

SHAPE = "smollm2-135m"
BASES: Mapping[str, Mapping[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "NF4": {"dtype": "float32", "quantization": "nf4"},
    "GPTQ": {"dtype": "float32", "packed": "true"},
}
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ROWS, PROMPT, WRITTEN, TOKENS = 8, 64, 16, (128, 512)
GROUP, TRIES = 64, 2
CPU = torch.device("cpu")
MODELS = ("1.5B", "3B", "7B", "14B", "32B")
CARDS = {"24 GB": "rtx4090", "80 GB": "h100"}
MAX_AGENTS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="only plan; measured figures stay")
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument("--measure", nargs=2, metavar=("BASE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    path = arguments.results / "qlora.json"
    result = json.loads(path.read_text()) if arguments.plan else {**machine.describe(), "bases": measure_all()}
    result["teams"] = plan_teams()
    path.write_text(json.dumps(result, indent=2) + "\n")
    path.with_suffix(".md").write_text(report(result))


def measure_all() -> dict[str, Any]:
    """Measure each base in a separate process."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        for name in BASES:
            command = [sys.executable, __file__, "--measure", name, folder]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            measured[name] = json.loads(said.splitlines()[-1])
    return measured


def write_models(folder: Path) -> None:
    """Save a random model in bfloat16, and the same in GPTQ's format, rounded to the nearest."""
    shape = COMMON_MODELS[SHAPE]
    config = LlamaConfig(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads,
        max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "plain")
    config.quantization_config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    config.save_pretrained(folder / "packed")
    packed: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "plain" / "model.safetensors").items():
        packed |= pack(name.removesuffix(".weight"), weight) if "_proj." in name else {name: weight}
    save_file(packed, folder / "packed" / "model.safetensors", metadata={"format": "pt"})


def pack(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Return a layer [out, in] in GPTQ's format, with symmetric scales."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    scales = (groups.abs().amax(-1, keepdim=True) / 7).half()
    codes = ((groups / scales.float()).round() + 8).clamp(0, 15).flatten(1).t().contiguous().to(torch.int64)
    words = sum(codes[place::8] << 4 * place for place in range(8))
    assert isinstance(words, Tensor)
    zeros = torch.full((groups.shape[1], len(weight) // 8), 0x77777777, dtype=torch.int32)
    signed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return {f"{name}.qweight": signed, f"{name}.qzeros": zeros, f"{name}.scales": scales[..., 0].t().contiguous()}


def measure(name: str, folder: str) -> dict[str, Any]:
    """Return bytes, seconds and rates of a base."""
    keys = dict(BASES[name])
    path = Path(folder) / ("packed" if keys.pop("packed", "") else "plain")
    settings = ModelSettings.model_validate({"path": str(path), **keys})
    began = time.process_time()
    backbone = load_backbone(settings, CPU, getattr(torch, settings.dtype))
    loading = time.process_time() - began
    store_in_half(backbone)
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    base = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    layers = [layer for layer in backbone.model.modules() if isinstance(layer, QuantizedLinear)]
    for policy in ("one", "two"):
        backbone.add_adapter(policy, 8, 16.0, LAYERS, seed=1)
    return {
        "base_bytes": base,
        "loading_seconds": loading,
        "dequantize_seconds": best(lambda: [layer.weight for layer in layers]) if layers else 0.0,
        "weights": sum(layer.in_features * layer.out_features for layer in layers),
        "sampling_tokens_per_second": ROWS * WRITTEN / best(lambda: sample(backbone)),
        "learning_tokens_per_second": {str(n): n / best(partial(learn, backbone, n)) for n in TOKENS},
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def best(work: Callable[[], object]) -> float:
    """Return the fewest seconds of CPU time of several tries."""
    seconds = []
    for _ in range(TRIES):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def rows_of(length: int, count: int) -> PackedRows:
    random = np.random.default_rng(0)
    texts = [random.integers(3, 1000, length).astype(np.int32) for _ in range(count)]
    return PackedRows.from_rows(texts, ["one"] * (count // 2) + ["two"] * (count - count // 2), CPU)


@torch.no_grad()
def sample(backbone: Backbone) -> None:
    """Read the prompts and decode, with the policies' rows in one batch."""
    running, rows = new_decode_cache(backbone), rows_of(PROMPT, ROWS)
    running.prefill(rows, [[slot] for slot in range(ROWS)])
    policies, ids = ["one"] * (ROWS // 2) + ["two"] * (ROWS // 2), torch.full((ROWS,), 5)
    for step in range(WRITTEN):
        hidden = running.step(ids, [PROMPT + step + 1] * ROWS, policies)
        ids = backbone.compute_logits(hidden, None).argmax(-1)


def learn(backbone: Backbone, tokens: int) -> None:
    """Run forward and backward on rows of 128 tokens, with all log-probs."""
    rows = rows_of(128, tokens // 128)
    hidden = backbone.hidden_states(rows)
    score_tokens(hidden, backbone.output_head, rows.ids.long(), None).log_probs.sum().backward()
    for policy in ("one", "two"):
        for adapter in backbone.adapters(policy).values():
            adapter.zero_grad()


def plan_teams() -> list[dict[str, Any]]:
    """Return the largest team of each model on each card, in bfloat16 and in NF4; 0 agents if none fits."""
    return [
        {
            "model": model,
            "quantization": quantization,
            "agents": {card: largest_team(model, quantization, spec) for card, spec in CARDS.items()},
            "bytes_of_2": planned_bytes(model, quantization, 2, "h100"),
        }
        for model in MODELS
        for quantization in ("none", "nf4")
    ]


def largest_team(model: str, quantization: str, card: str) -> int:
    low, high = 0, MAX_AGENTS + 1
    limit = 0.97 * find_device_spec(card).memory
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if planned_bytes(model, quantization, middle, card) <= limit else (low, middle)
    return low


def planned_bytes(model: str, quantization: str, agents: int, card: str) -> float:
    """Return the planned peak memory of a team on one card."""
    roles = [f"agent{number}" for number in range(agents)]
    run = parse_recipe(
        {
            "name": "team",
            "models": {
                "base": {
                    "path": f"Qwen/Qwen2.5-{model}-Instruct",
                    "quantization": quantization,
                    "gradient_checkpointing": True,
                }
            },
            "policies": {
                role: {"model": "base", "lora": {"rank": 16, "target_modules": list(LAYERS)}} for role in roles
            },
            "agents": [
                {"role": role, "policy": role, "instructions": "Work.", "answers": role == roles[-1]} for role in roles
            ],
            "environment": {"name": "reasoning_gym", "dataset": "chain_sum"},
            "algorithm": {"name": "grpo"},
            "rollout": {"tasks_per_step": 4, "samples_per_task": 8},
            "training": {"tokens_per_micro_batch": 2048},
            "engine": {"kind": "local", "max_batch_size": 16, "prefix_cache_mb": 0},
        }
    )
    lengths = KnownLengths(prompt=512, action=256, longest=512)
    made = make_plan(run, PlanRequest(1, find_device_spec(card), lengths=lengths))
    return made.best.processes[0].on_card


def report(result: Mapping[str, Any]) -> str:
    lines = [
        "# A base in 4 bits",
        "",
        f"`python benchmarks/qlora.py`, {result['processor']}, one thread, torch {result['torch']}.",
        "",
        f"Random weights in the shape of {SHAPE}, two policies with adapters of rank 8 on all linear layers.",
        "Embeddings, norms and head (a fifth of the weights) are not quantized. Seconds are CPU time.",
        "",
        "| base | base, MB | peak of the process, MB | loading, s | sampling, tokens/s | learning, tokens/s: "
        "128 tokens at a time | 512 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, it in result["bases"].items():
        few, many = it["learning_tokens_per_second"].values()
        lines.append(
            f"| {name} | {it['base_bytes'] / 1e6:,.0f} | {it['peak_rss_bytes'] / 1e6:,.0f} | "
            f"{it['loading_seconds']:.1f} | {it['sampling_tokens_per_second']:,.0f} | {few:,.0f} | {many:,.0f} |"
        )
    rates = {name: it["weights"] / it["dequantize_seconds"] for name, it in result["bases"].items() if it["weights"]}
    lines += [
        "",
        "Weights dequantized per second: "
        + ", ".join(f"{name} {rate / 1e6:,.0f} million" for name, rate in rates.items())
        + ". Every decoding step and every forward and backward pass dequantizes each layer once.",
        "",
        "## The largest team on one card",
        "",
        "Planned by `marft plan`, not measured: Qwen2.5, the agents of a chain with own adapters of rank 16 on all",
        "linear layers (GRPO, gradient checkpointing, 2,048 tokens per micro-batch, prompts of 512 and actions of 256",
        "to 512 tokens, 16 rows sampled at a time by the in-process engine).",
        "",
        "| model | base | two agents, GB | most agents on 24 GB | on 80 GB |",
        "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for it in result["teams"]:
        counts = [str(count) if count < MAX_AGENTS else f"{MAX_AGENTS} or more" for count in it["agents"].values()]
        shown = " | ".join("none" if count == "0" else count for count in counts)
        base = "bfloat16" if it["quantization"] == "none" else "NF4"
        lines.append(f"| {it['model']} | {base} | {it['bytes_of_2'] / 1e9:.1f} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
