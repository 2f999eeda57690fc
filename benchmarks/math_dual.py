"""Train the paper's own setting, bundled as ``math_dual``, for a few steps on a real model: seconds and memory.

    python benchmarks/math_dual.py math_train.jsonl --model runs/models/smollm2
    python benchmarks/math_dual.py math_train.jsonl --model Qwen/Qwen2.5-Coder-3B-Instruct --device cuda

Each line of the file has a problem and its ``answer``. Two agents write up to 512 new tokens each, four episodes per
step. The algorithm is MARFT at action level with the paper's hyperparameters. Two steps are too few to learn; they show
that the setting runs, and its cost. An interrupted run resumes. Writes results/math_dual.json and .md, with memory
estimates for this model and for the recipe's own.
"""

from __future__ import annotations

import argparse
import json
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import torch
from transformers import AutoConfig, PretrainedConfig

from marft.cli.handlers import silence_transformers
from marft.config import RunSettings, load_recipe
from marft.config.bundled import resolve_path
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model that determine its memory."""

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    key_heads: int
    head: int  # features of an attention head
    vocabulary: int
    bytes: int  # bytes per number: 4 in float32, 2 in bfloat16

    @property
    def parameters(self) -> int:
        """Weights of a Llama or Qwen2 with tied embeddings, without norms and biases.

        >>> round(QWEN_3B.parameters / 1e9, 2)
        3.09
        """
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.key_heads)
        return self.vocabulary * self.hidden + self.layers * (attention + 3 * self.hidden * self.feed_forward)

    @property
    def adapter(self) -> int:
        """Parameters of a LoRA of rank 8 on queries and values."""
        return 8 * self.layers * (2 * self.hidden + self.head * (self.heads + self.key_heads))

    @property
    def cache(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.layers * self.key_heads * self.head * self.bytes

    @property
    def activations(self) -> int:
        """Bytes that one token's forward pass keeps for its backward pass.

        Each layer keeps the inputs and outputs of its norms, projections, attention and feed-forward part once.
        """
        kept = 6 * self.hidden + (2 * self.heads + 2 * self.key_heads) * self.head + 3 * self.feed_forward
        return self.layers * kept * self.bytes


QWEN_3B = Sizes(2048, 36, 11008, 16, 2, 128, 151936, bytes=2)  # Qwen2.5-Coder-3B-Instruct, from its config.json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="file with one problem and its answer per line")
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    words = {
        "models.base.path": arguments.model, "environment.path": str(arguments.path.absolute()),
        "environment.answer": "answer", "environment.test_path": "", "training.steps": str(arguments.steps),
        "device": arguments.device, "output": str(arguments.output), "evaluation.every": "0",
        "checkpoints.every": "1",
    }  # fmt: skip
    run = load_recipe("math_dual", [word for key, value in words.items() for word in (f"--{key}", value)])
    result = measured(run)
    arguments.results.mkdir(exist_ok=True, parents=True)
    (arguments.results / "math_dual.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.results / "math_dual.md").write_text(table(result))
    print(table(result))


def measured(run: RunSettings) -> dict[str, Any]:
    """Train the run to its end, resuming it; return each step's cost, and the peak memory."""
    silence_transformers()
    folder = RunFolder(Path(run.output) / run.name)
    train(run, folder, resume=folder.has_progress())
    on_gpu = torch.cuda.is_available() and run.device != "cpu"
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    steps = [step_of(row) for row in folder.read_metrics()]
    config = AutoConfig.from_pretrained(resolve_path(run.models["base"].path))
    return {
        "machine": machine.describe(), "model": config.name_or_path or run.models["base"].path, "steps": steps,
        "peak_bytes": peak,
        "estimates": estimates(sizes_of(config, 2 if on_gpu else 4), steps, run.training.tokens_per_micro_batch),
    }  # fmt: skip


def estimates(sizes: Sizes, steps: list[dict[str, float]], most: int) -> dict[str, dict[str, float]]:
    """Estimate the memory of this model and of the recipe's own model.

    This model's micro-batches have the tokens of a step, at most ``most``. The recipe's own model has two sizes.
    """
    return {
        "this model": estimate(sizes, min(most, int(max(step["read_tokens"] for step in steps)))),
        "Qwen2.5-Coder-3B, bfloat16, micro-batches of 8,192 tokens": estimate(QWEN_3B, 8192),
        "Qwen2.5-Coder-3B, bfloat16, micro-batches of 2,048 tokens": estimate(QWEN_3B, 2048),
    }


def step_of(row: dict[str, Any]) -> dict[str, float]:
    agents = ("reasoner", "actor")
    return {
        "sampling": row["seconds/sampling"], "learning": row["seconds/learning"], "reward": row["reward"],
        "sampled_tokens": row["seconds/sampling"] * row["tokens_per_second/sampling"],
        "read_tokens": row["seconds/learning"] * row["tokens_per_second/learning"],
        "length": sum(row[f"agents/{agent}/action_length"] for agent in agents) / len(agents),
    }  # fmt: skip


def sizes_of(config: PretrainedConfig, bytes: int) -> Sizes:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Sizes(
        config.hidden_size, config.num_hidden_layers, config.intermediate_size, config.num_attention_heads,
        config.num_key_value_heads, head, config.vocab_size, bytes,
    )  # fmt: skip


def estimate(sizes: Sizes, tokens: int) -> dict[str, float]:
    """Estimate the memory in GiB from a model's sizes, for eight actions per step with at most 1,024 tokens each.

    Args:
        sizes: sizes of the model.
        tokens: tokens of a micro-batch. Their activations stay until the gradient is computed.
    """
    parts = {
        "weights": sizes.parameters * sizes.bytes,
        "adapters": 2 * 16 * sizes.adapter,  # two policies; weights, gradient and Adam in float32
        "cache": 4 * 1024 * sizes.cache,  # four episodes; their agents act in sequence
        "activations": tokens * sizes.activations,
    }
    sampling, learning = parts["cache"], parts["activations"]  # never at the same time
    total = parts["weights"] + parts["adapters"] + max(sampling, learning)
    return {name: value / GIB for name, value in {**parts, "total": total}.items()}


def table(result: dict[str, Any]) -> str:
    lines = [
        "| step | sampling | learning | sampled tokens | tokens read | tokens an action |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for number, step in enumerate(result["steps"], 1):
        lines.append(
            f"| {number} | {step['sampling']:.0f} s | {step['learning']:.0f} s | {step['sampled_tokens']:.0f} "
            f"| {step['read_tokens']:.0f} | {step['length']:.0f} |"
        )
    lines += [
        "",
        f"{result['peak_bytes'] / GIB:.1f} GiB at most "
        f"({result['machine']['processor']}, {result['machine']['threads']} thread(s), {result['machine']['device']}).",
        "",
        "Estimates from the model's sizes (GiB), without the memory of libraries and temporary buffers:",
        "",
        "| model | weights | adapters | cache | activations | at most |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, parts in result["estimates"].items():
        cells = [f"{parts[part]:.2f}" for part in ("weights", "adapters", "cache", "activations", "total")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
