"""Compare the bytes that ``marft plan`` predicts with the tensors of whole training steps on a CPU.

    python benchmarks/plan_memory.py                  # each case in its own process; resumes
    python benchmarks/plan_memory.py --smollm2 DIR    # also SmolLM2, from tools/smollm2.py

Each case loads a small model, plays and learns two steps, and publishes. :mod:`tensor_bytes` counts tensors at every
operation of torch. The figure is the peak, including weights, adapters, moments, caches and the copy for undoing a
step. The prediction is for the lengths that were played. The table also has resident memory, minus the memory before
the model was loaded. It is larger, because an allocator rounds up and keeps memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import machine
import numpy as np
import torch
from tensor_bytes import Counted
from throughput import word_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from marft.common.types import Episode
from marft.config import RunSettings, parse_recipe
from marft.config.interfaces.schedule import Progress
from marft.models.device_specs import find_device_spec
from marft.models.devices import keep_freed_memory
from marft.models.model_sizes import find_sizes
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import collect_rollouts, load_training_tasks
from marft.runs.state import State
from marft.trainer.learner import Learner
from marft.trainer.non_finite_guard import NonFiniteGuard
from marft_lab.planning.memory import PlanContext, ProcessMemory, learner_memory
from marft_lab.planning.workload import compute_workload, mean_lengths

STEPS = 2
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SMALL = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6, "num_attention_heads": 4}
WIDE = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
CASES: dict[str, dict[str, Any]] = {
    "Qwen2, LoRA": {"kind": "qwen2", "sizes": SMALL, "vocabulary": 4096, "tasks": 16},
    "Qwen2, LoRA on all layers": {"kind": "qwen2", "sizes": SMALL, "vocabulary": 4096, "targets": ALL},
    "Qwen2, a large vocabulary": {"kind": "qwen2", "sizes": SMALL, "vocabulary": 151_936, "batch": 2048},
    "Llama, few long actions": {
        "kind": "llama", "sizes": WIDE, "vocabulary": 8192, "prompt": 200, "action": 120, "tasks": 4,
    },
    "Qwen3, micro-batches of 2,048": {"kind": "qwen3", "sizes": WIDE, "vocabulary": 8192, "batch": 2048},
    "Llama, gradient checkpointing": {"kind": "llama", "sizes": WIDE, "vocabulary": 4096, "recompute": True},
    "Qwen2 in bfloat16, LoRA": {"kind": "qwen2", "sizes": WIDE, "vocabulary": 8192, "dtype": "bfloat16"},
    "Llama, one policy whole": {"kind": "llama", "sizes": SMALL, "vocabulary": 4096, "full": True},
    "Qwen2, token level": {"kind": "qwen2", "sizes": SMALL, "vocabulary": 4096, "level": "token"},
    "Qwen2, GRPO with KL": {"kind": "qwen2", "sizes": SMALL, "vocabulary": 4096, "algorithm": "grpo"},
}  # fmt: skip
MODELS = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}  # fmt: skip


def save_model(folder: Path, kind: str, sizes: dict[str, int], vocabulary: int) -> None:
    """Save a random model without an end-of-turn token."""
    torch.manual_seed(0)
    config, model = MODELS[kind]
    heads = {"num_key_value_heads": 2, **({"head_dim": 64} if kind == "qwen3" else {})}
    model(
        config(
            vocab_size=vocabulary, max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=None,
            eos_token_id=None, pad_token_id=None, **sizes, **heads,
        )
    ).save_pretrained(folder)  # fmt: skip


def recipe(folder: Path, case: dict[str, Any]) -> RunSettings:
    """Return a chain of two agents with a policy each."""
    lora = {"rank": 8, "alpha": 16.0, "target_modules": case.get("targets", ["q_proj", "v_proj"])}
    whole = {"model": "base", "train": "full", "learning_rate": 1e-6}
    action, prompt = case.get("action", 40), case.get("prompt", 100)
    roles = ("reasoner", "actor")
    level = case.get("level", "action")
    return parse_recipe({
        "name": "plan_memory", "device": "cpu", "threads": 1,
        "models": {"base": {
            "path": str(folder), "dtype": case.get("dtype", "float32"),
            "gradient_checkpointing": case.get("recompute", False),
        }},
        "policies": {
            role: whole if case.get("full") and role == "actor" else {"model": "base", "lora": lora} for role in roles
        },
        "agents": [
            {"role": role, "policy": role, "answers": role == "actor", "sampling": {"max_new_tokens": action}}
            for role in roles
        ],
        "environment": case.get("environment") or {
            "name": "throughput:Numbers", "vocabulary": case["vocabulary"], "length": prompt,
        },
        "rollout": {"tasks_per_step": case.get("tasks", 8), "samples_per_task": 2},
        "training": {"steps": STEPS, "tokens_per_micro_batch": case.get("batch", 4096)},
        "algorithm": {
            "name": case.get("algorithm", "marft"), "level": level,
            **({"critic": {"warmup_steps": 0}} if case.get("algorithm", "marft") == "marft" else {}),
        },
    })  # fmt: skip


def measure(case: dict[str, Any], folder: Path) -> dict[str, float]:
    """Measure one case in this process: predicted and counted bytes."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    keep_freed_memory()
    before = machine.footprint()["memory_mb"]
    run = recipe(folder, case)
    if "vocabulary" not in case:
        return _counted(run, before)
    words = word_tokenizer(case["vocabulary"])  # else transformers would split words as for Qwen2
    with patch("marft.models.tokenizer_format.load_tokenizer", lambda _: words):
        return _counted(run, before)


def _counted(run: RunSettings, before: int) -> dict[str, float]:
    played: list[Episode] = []
    with LocalRolloutRunner(run) as rollouts:
        careful = NonFiniteGuard(learning := Learner(run, rollouts.models))
        tasks = load_training_tasks(run)
        rollouts.publish(0)
        with Counted(there(learning, rollouts)) as counted:
            for step in range(STEPS):
                collection = collect_rollouts(
                    rollouts, tasks, State(step=step, tasks_drawn=step * run.rollout.tasks_per_step), lambda _: None
                )
                careful.learn(collection.training_episodes, Progress(step, 0))
                rollouts.publish(step + 1)
                played = collection.episodes
    predicted = predict(run, played)
    return {
        "predicted": predicted.on_card + sum(p.bytes for p in predicted.parts if p.name == "copy of what learns"),
        "counted": float(counted.most),
        "resident": float(most_memory_mb() - before) * 2**20,
        "prompt": float(np.mean([len(a.prompt) for e in played for a in e.actions])),
        "action": float(np.mean([len(a.tokens) for e in played for a in e.actions])),
        "parts": {part.name: part.bytes for part in predicted.parts},  # type: ignore[dict-item]
    }


def there(learning: Learner, rollouts: LocalRolloutRunner) -> Iterator[torch.Tensor]:
    """Yield the tensors that exist before a step: weights, adapters, the critic."""
    for policy in rollouts.models.policies.values():
        for backbone in (policy.backbone, policy.reference, policy.reader):
            yield from backbone.model.state_dict().values()
    if learning.critic:
        yield from learning.critic.parameters().values()


def predict(run: RunSettings, played: list[Episode]) -> ProcessMemory:
    """Return the plan's prediction for the lengths that were played."""
    shapes = {name: find_sizes(name, model) for name, model in run.models.items()}
    work = compute_workload(run, mean_lengths(played, "played").lengths)
    return learner_memory(PlanContext(run, shapes, work, find_device_spec("cpu")), True, float("inf"))


def most_memory_mb() -> int:
    """Return the peak resident memory of this process, in MiB (Linux)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) // 1024


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "| case | prompt + action | predicted | counted | error | resident |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in results.items():
        mb = {key: row[key] / 1e6 for key in ("predicted", "counted", "resident")}
        error = mb["predicted"] / mb["counted"] - 1
        lines.append(
            f"| {name} | {row['prompt']:,.0f} + {row['action']:,.0f} | {mb['predicted']:,.1f} MB | "
            f"{mb['counted']:,.1f} MB | {error:+.1%} | {mb['resident']:,.0f} MB |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help="measure one case in this process and print JSON")
    parser.add_argument("--smollm2", type=Path, help="folder with SmolLM2, to measure it too")
    arguments = parser.parse_args()
    cases = dict(CASES)
    if arguments.smollm2:
        chain_sum = {"name": "reasoning_gym", "dataset": "chain_sum"}
        cases["SmolLM2-135M, LoRA"] = {"environment": chain_sum, "tasks": 4, "batch": 2048}
    if arguments.case:
        case = cases[arguments.case]
        with tempfile.TemporaryDirectory() as folder:
            if "kind" in case:
                save_model(Path(folder), case["kind"], case["sizes"], case["vocabulary"])
            print(json.dumps(measure(case, Path(folder) if "kind" in case else arguments.smollm2)))
        return
    path = machine.RESULTS / "plan_memory.json"
    found = json.loads(path.read_text())["cases"] if path.exists() else {}
    for name in (name for name in cases if name not in found):
        smollm2 = ["--smollm2", str(arguments.smollm2)] if arguments.smollm2 else []
        command = [sys.executable, __file__, "--case", name, *smollm2]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[name] = json.loads(said.splitlines()[-1])
        print(table({name: found[name]}).splitlines()[-1], flush=True)
        machine.save("plan_memory", {"machine": machine.describe(), "cases": found})
        path.with_suffix(".md").write_text(f"{table(found)}\nOn {machine.describe()['processor']}, one thread.\n")


if __name__ == "__main__":
    main()
