"""Profile a training step on a real model: products by kind, attention, adapters, head, everything else.

    python benchmarks/step_profile.py --smollm2 FOLDER      # folder from tools/smollm2.py

The step is that of ``against_trl.py``: 32 completions of 64 tokens, LoRA of rank 8 on all linear layers, GRPO with one
update. torch's profiler measures each operation on the thread that called it, and records the shapes of its operands.
Name and shapes determine an operation's kind. Python is what a step without the profiler takes beyond them. The floor
is the time of the frozen products and the head at the float32 rate measured in the same run (``machine.matmul_rate``).
Writes results/step_profile.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import machine
from torch.profiler import ProfilerActivity, profile
from versus import marft_steps
from versus.setting import Setting

PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm", "mkldnn::_linear_pointwise"}
KINDS = (
    "products: attention's projections",
    "products: feed-forward",
    "products: head",
    "adapters",
    "attention",
    "head: softmax and draws",
    "norms, rotations, gates, sums",
    "optimizer",
    "Python and waiting",
)


class Sizes(NamedTuple):
    """Sizes that distinguish the kinds of products."""

    hidden: int
    intermediate: int
    vocabulary: int
    rank: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", required=True, help="folder created by tools/smollm2.py")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    save(arguments.results, measure(Setting("smollm2", arguments.smollm2, threads=arguments.threads)))


def measure(setting: Setting) -> dict[str, Any]:
    """Return the seconds of one step's two phases by kind, after two warm-up steps, and those without the profiler."""
    with marft_steps.opened(setting) as steps:
        plain = [_seconds(steps) for _ in range(3)][2]
        config = steps.rollouts.models.policies["solver"].backbone.model.config
        sizes = Sizes(config.hidden_size, config.intermediate_size, config.vocab_size, setting.rank)
        rate = machine.matmul_rate()
        phases: dict[str, Any] = {}
        made: list[Any] = []
        prompt = 0
        for name in ("generating", "learning"):
            began = time.perf_counter()
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
                if name == "generating":
                    made = steps.play()
                else:
                    steps.learn(made)
            seconds = time.perf_counter() - began
            by_kind = kinds_of(profiler.key_averages(group_by_input_shape=True), sizes)
            by_kind["Python and waiting"] += max(0.0, plain[name] - sum(by_kind.values()))
            prompt = len(made[0].actions[0].prompt)
            phases[name] = {"seconds": plain[name], "profiled": seconds, "kinds": by_kind}
    weights = _frozen_weights(config)
    floor = floor_operations(setting, weights, config.hidden_size * config.vocab_size, prompt)
    for name, phase in phases.items():
        phase["floor"] = floor[name] / rate
    return {
        "machine": machine.describe(),
        "prompt_tokens": prompt,
        "gflop": {name: operations / 1e9 for name, operations in floor.items()},
        "matmul_gflop_per_second": rate / 1e9,
        "phases": phases,
        "share_of_floor": sum(floor.values()) / rate / sum(plain.values()),
    }


def _seconds(steps: marft_steps.Steps) -> dict[str, float]:
    began = time.perf_counter()
    episodes = steps.play()
    played = time.perf_counter()
    steps.learn(episodes)
    return {"generating": played - began, "learning": time.perf_counter() - played}


def _frozen_weights(config: Any) -> int:
    """Return the number of weights in the matrices of all layers."""
    width = config.hidden_size // config.num_attention_heads
    keys = 2 * config.hidden_size * config.num_key_value_heads * width
    layer = 2 * config.hidden_size**2 + keys + 3 * config.hidden_size * config.intermediate_size
    return int(config.num_hidden_layers * layer)


def floor_operations(setting: Setting, weights: int, head: int, prompt: int) -> dict[str, float]:
    """Return the minimum operations by phase: two per weight and token.

    Generating reads every prompt once, and decodes every token. Learning computes all rows forward, each prompt once,
    and backward with respect to activations. The head computes only sampled tokens, in both directions.

    >>> setting = Setting("", "", tasks=1, samples=2, tokens=3)
    >>> floor_operations(setting, weights=10, head=100, prompt=4)
    {'generating': 1360.0, 'learning': 2720.0}
    """
    sampled = setting.completions * setting.tokens
    once = weights * (setting.tasks * prompt + sampled - setting.completions) + head * sampled
    return {"generating": 2.0 * once, "learning": 4.0 * once}


def kinds_of(events: Sequence[Any], sizes: Sizes) -> dict[str, float]:
    """Return seconds by kind from the profiler's events, without the time of nested operations."""
    seconds: Counter[str] = Counter(dict.fromkeys(KINDS, 0.0))
    for event in events:
        if event.key.startswith(("aten::", "mkldnn::")):
            seconds[kind_of(event.key, event.input_shapes, sizes)] += event.self_cpu_time_total / 1e6
    return dict(seconds)


def kind_of(name: str, shapes: Sequence[Any], sizes: Sizes) -> str:
    """Return the kind of an operation, by its name and the shapes of its operands.

    >>> sizes = Sizes(hidden=576, intermediate=1536, vocabulary=49152, rank=8)
    >>> kind_of("aten::mm", [[3392, 576], [576, 1536]], sizes), kind_of("aten::mm", [[24, 576], [576, 32]], sizes)
    ('products: feed-forward', 'adapters')
    """
    matrices = [shape for shape in shapes if isinstance(shape, list) and len(shape) == 2]
    numbers = {number for shape in shapes if isinstance(shape, list) for number in shape}
    if "scaled_dot_product" in name or (name in PRODUCTS and matrices == [] and numbers):
        return "attention"
    if name in PRODUCTS:
        if any(number in numbers for number in (sizes.rank, 2 * sizes.rank, 3 * sizes.rank)):
            return "adapters"
        if sizes.vocabulary in numbers:
            return "products: head"
        return (
            "products: feed-forward"
            if numbers & {sizes.intermediate, 2 * sizes.intermediate}
            else "products: attention's projections"
        )
    if sizes.vocabulary in numbers:
        return "head: softmax and draws"
    if name.startswith("aten::_foreach") or "adam" in name:
        return "optimizer"
    if name in ("aten::_softmax", "aten::index_copy_"):
        return "attention"
    return "norms, rotations, gates, sums"


def table(result: Mapping[str, Any]) -> str:
    phases = result["phases"]
    lines = [
        f"| seconds of | {' | '.join(phases)} | both |",
        f"| --- |{' ---: |' * (len(phases) + 1)}",
    ]

    def line(what: str, of_phase: Callable[[Mapping[str, Any]], float]) -> None:
        values = [of_phase(phase) for phase in phases.values()]
        lines.append(f"| {what} | {' | '.join(f'{value:.2f}' for value in [*values, sum(values)])} |")

    for kind in KINDS:
        line(kind, lambda phase, kind=kind: phase["kinds"][kind])  # type: ignore[misc]
    line("the step under the profiler", lambda phase: phase["profiled"])
    line("a step without it", lambda phase: phase["seconds"])
    line("the floor", lambda phase: phase["floor"])
    lines += ["", f"{result['share_of_floor']:.0%} of the floor, at {result['matmul_gflop_per_second']:.0f} GFLOP/s."]
    return "\n".join(lines) + "\n"


def save(results: Path, result: Mapping[str, Any]) -> None:
    results.mkdir(parents=True, exist_ok=True)
    (results / "step_profile.json").write_text(json.dumps(result, indent=2) + "\n")
    (results / "step_profile.md").write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main()
