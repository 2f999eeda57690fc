"""Train the whole demo with the in-process engine and with vLLM: accuracy, time, and how far engine and learner differ.

    marft engine install vllm --cpu
    python benchmarks/vllm_demo.py
    python benchmarks/vllm_demo.py --seeds 1 --steps 5 --tasks 40

All runs are evaluated on the same held-out tasks. Interrupted runs resume. The script exits with status 1 if a token's
log-prob differs by more than 1e-4 nats. Writes results/vllm_demo.json and .md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import machine

from marft.config import load_recipe
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

ENGINES = {"in process": (), "vLLM": ("--engine", "{ kind = 'vllm', engine_args = { enforce_eager = true } }")}
CLOSE = 1e-4  # nats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="training steps; default: the demo's")
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks per evaluation")
    parser.add_argument("--output", type=Path, default=Path("runs/vllm_demo"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        for engine, changes in ENGINES.items():
            folder = trained(arguments, engine, seed, changes)
            rows.append({"engine": engine, "seed": seed, **measured(folder), **accuracies(folder, arguments.tasks)})
            save(arguments.results, rows)
    sys.exit(max(row["furthest"] for row in rows) > CLOSE)


def trained(arguments: argparse.Namespace, engine: str, seed: int, changes: tuple[str, ...]) -> RunFolder:
    """Train the demo to its end, from its newest checkpoint if there is one."""
    name = f"{engine.replace(' ', '_')}-{seed}"
    length = () if arguments.steps is None else ("--training.steps", str(arguments.steps))
    where = ("--output", str(arguments.output), "--name", name, "--seed", str(seed))
    run = load_recipe("demo", [*where, "--device", "cpu", *length, *changes])
    path = Path(run.output) / run.name
    folder = RunFolder.open(path) if path.exists() else RunFolder.create(run)
    if len(folder.read_metrics()) < run.training.steps:
        train(run, folder)
    return folder


def measured(folder: RunFolder) -> dict[str, float]:
    """Return the largest and the mean difference of log-probs to the learner's, and the seconds per step."""
    rows = [row for row in folder.read_metrics() if "log_prob_difference" in row]
    return {
        "steps": len(rows),
        "furthest": max(row["log_prob_difference_max"] for row in rows),
        "mean": sum(row["log_prob_difference"] for row in rows) / len(rows),
        "seconds": sum(row["seconds"] for row in rows) / len(rows),
    }


def accuracies(folder: RunFolder, tasks: int) -> dict[str, float | None]:
    """Return the accuracies of the last checkpoint, with the engine that it was trained with."""
    found = evaluate_checkpoints(
        folder.settings(), folder, EvaluationPlan(["last"], ("greedy", "sampled"), tasks), lambda *_: None
    )
    return {result.mode: result.accuracy for result in found}


def save(results: Path, rows: list[dict[str, Any]]) -> None:
    lines = [
        "| engine | seed | greedy | sampled | steps | furthest log-prob, nats | mean | seconds a step |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['engine']} | {row['seed']} | {row['greedy']:.1%} | {row['sampled']:.1%} | {row['steps']} "
        f"| {row['furthest']:.1e} | {row['mean']:.1e} | {row['seconds']:.1f} |"
        for row in rows
    ]
    results.mkdir(parents=True, exist_ok=True)
    (results / "vllm_demo.json").write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=2) + "\n")
    (results / "vllm_demo.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
