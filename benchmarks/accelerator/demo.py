"""The bundled demo, trained in full: does it learn on this device what it learns on a CPU?"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from accelerator.stage import Setting

REFERENCE = Path(__file__).parents[1] / "results" / "gpu" / "demo_cpu.json"
TASKS, SEEDS = 500, (0, 1, 2)
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}  # 97.5 % quantile by degrees of freedom


def train_demo(setting: Setting, seed: int) -> None:
    """Train and evaluate the demo with one seed; save its held-out successes, curve and seconds."""
    from marft.cli.handlers import silence_transformers
    from marft.config import load_recipe
    from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
    from marft.runs.run_folder import RunFolder
    from marft.trainer.train import train

    silence_transformers()
    steps, tasks = (2, 20) if setting.small else (30, TASKS)
    run = load_recipe("demo", changes={
        "device": setting.torch_device, "seed": seed, "training.steps": steps, "output": str(setting.scratch),
        "name": f"demo-{seed}", "evaluation.every": 0, "models.base.dtype": "float32", "threads": 1,
    })  # fmt: skip
    folder = RunFolder(setting.scratch / run.name)
    began = time.perf_counter()
    train(run, folder, overwrite=True)
    metrics = folder.read_metrics()
    setting.save(
        seed=seed, steps=steps, seconds=time.perf_counter() - began,
        accuracy=[round(float(step["accuracy"]), 4) for step in metrics if "accuracy" in step],
        last={name: value for name, value in metrics[-1].items() if name.startswith(("seconds", "tokens_per_second"))},
    )  # fmt: skip
    [found] = evaluate_checkpoints(run, folder, EvaluationPlan(("last",), ("sampled",), tasks), lambda _=None: None)
    setting.save(tasks=tasks, success=found.accuracy)


def interval(reference: Sequence[float], count: int, tasks: int = TASKS) -> tuple[float, float]:
    """Return the 95 % prediction interval for the mean success of ``count`` further seeds.

    The spread over seeds is at least that of ``tasks`` draws.

    >>> [round(bound, 3) for bound in interval([0.98, 0.99, 1.0], 3)]
    [0.955, 1.0]
    """
    mean = fmean(reference)
    spread = max(stdev(reference), math.sqrt(mean * (1 - mean) / tasks))
    half = STUDENT[len(reference) - 1] * spread * math.sqrt(1 / len(reference) + 1 / count)
    return max(0.0, mean - half), min(1.0, mean + half)


def compare(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return whether the mean success of finished runs lies in the interval of the CPU's runs."""
    successes = [row["success"] for row in rows if row.get("tasks") == TASKS and "success" in row]
    if not successes or not REFERENCE.is_file():
        return {}
    low, high = interval([row["success"] for row in json.loads(REFERENCE.read_text())["rows"]], len(successes))
    mean = fmean(successes)
    return {"mean": mean, "interval": [low, high], "inside": low <= mean <= high, "seeds": len(successes)}
