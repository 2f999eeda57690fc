"""Compare weight updates that drain requests with in-flight updates, at lag 1 and 2.

    python benchmarks/in_flight.py                        # MARFT's engine in another process
    marft engine install vllm --cpu
    python benchmarks/in_flight.py --engines process vllm

Two agents share an adapter of the bundled model and sample at temperature 5, so their actions have a long tail of
lengths. Ages are numbers of updates between the weights that sampled a token and those that train on it. Writes
results/in_flight.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import machine
import numpy as np

from marft.config import load_recipe
from marft.config.interfaces.engine import Weights
from marft.inference.subprocess_engine.engine import SubprocessEngine
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

SETTINGS = (
    "--policies", "{ team = { model = 'base' } }", "--agents.reasoner.policy", "team", "--agents.actor.policy", "team",
    "--rollout.tasks_per_step", "4", "--rollout.samples_per_task", "2", "--algorithm.optimizer.learning_rate", "1e-5",
    "--algorithm.critic.warmup_steps", "0", "--device", "cpu", "--threads", "1", "--sinks", "[]",
    *(word for role in ("reasoner", "actor") for name, value in (("max_new_tokens", "384"), ("temperature", "5"))
      for word in (f"--agents.{role}.sampling.{name}", value)),
)  # fmt: skip
FORMATS = {
    "seconds": ".0f", "tokens/s": ".0f", "median tokens": ".0f", "longest": ".0f", "publish s": ".2f",
    "sampler idle s": ".1f", "learner idle s": ".1f", "mean age": ".2f", "oldest": ".0f", "mixed actions": ".0%",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=["process", "vllm"], default=["process"])
    parser.add_argument("--lags", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("runs/in_flight"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.output, ignore_errors=True)
    rows = []
    for engine in arguments.engines:
        for lag in arguments.lags:
            for updates in ("drain", "in_flight"):
                row = {"engine": engine, "lag": lag, "weight updates": updates}
                rows.append({**row, **measure(row, arguments.steps, arguments.output)})
                print(rows[-1], flush=True)
                save(arguments.results, arguments.steps, rows)


def measure(row: Mapping[str, Any], steps: int, output: Path) -> dict[str, float]:
    """Train, and return the measurements of the steps after the first one."""
    vllm = f", python = '{os.environ.get('MARFT_VLLM', '')}', engine_args = {{ enforce_eager = true }}"
    own = ", threads = 1" if row["engine"] == "process" else vllm
    engine = f"{{ kind = '{row['engine']}', weight_updates = '{row['weight updates']}'{own} }}"
    name = "_".join(map(str, row.values()))
    options = ("--engine", engine, "--rollout.max_policy_lag", str(row["lag"]), "--training.steps", str(steps))
    run = load_recipe("demo", [*SETTINGS, *options, "--output", str(output), "--name", name])
    folder = RunFolder.create(run)
    with publish_times() as seconds:
        train(run, folder)
    return summarize(folder, seconds)


@contextmanager
def publish_times() -> Iterator[list[float]]:
    """Record the seconds of each publication."""
    seconds, publish = list[float](), SubprocessEngine.publish

    async def timed(engine: SubprocessEngine, policies: Mapping[str, Weights], version: int) -> None:
        began = time.perf_counter()
        await publish(engine, policies, version)
        seconds.append(time.perf_counter() - began)

    with mock.patch.object(SubprocessEngine, "publish", timed):
        yield seconds


def summarize(folder: RunFolder, publications: list[float]) -> dict[str, float]:
    """Return the measurements of all steps but the first, which waits for the first episodes."""
    rows = folder.read_metrics()[1:]
    ages, lengths, mixed = list[int](), list[int](), list[bool]()
    for step, file in list(enumerate(sorted(folder.episodes.glob("step_*.parquet"))))[1:]:
        for action in (action for episode in read_episodes(file) for action in episode.actions):
            versions = action.token_versions
            single = np.full(action.num_decisions, action.versions.lowest)
            ages += (step - (single if versions is None else versions)).tolist()
            lengths.append(action.num_decisions)
            mixed.append(versions is not None)
    seconds = sum(float(row["seconds"]) for row in rows)
    return {
        "seconds": seconds,
        "tokens/s": sum(lengths) / seconds,
        "median tokens": float(np.median(lengths)),
        "longest": float(max(lengths)),
        "publish s": float(np.mean(publications[1:])),
        "sampler idle s": sum(float(row["async/sampler_idle_seconds"]) for row in rows),
        "learner idle s": sum(float(row["async/learner_idle_seconds"]) for row in rows),
        "mean age": float(np.mean(ages)),
        "oldest": float(max(ages)),
        "mixed actions": float(np.mean(mixed)),
    }


def save(results: Path, steps: int, rows: list[dict[str, Any]]) -> None:
    """Write the results as JSON and Markdown."""
    names = list(rows[0])
    cells = [[format(row[name], FORMATS.get(name, "")) for name in names] for row in rows]
    lines = [
        f"Steps 2 to {steps} of each run; `publish s` is the mean duration of a publication:",
        "",
        f"| {' | '.join(names)} |",
        f"|{'|'.join(' ---: ' if name in FORMATS else ' --- ' for name in names)}|",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]
    results.mkdir(parents=True, exist_ok=True)
    (results / "in_flight.json").write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=2) + "\n")
    (results / "in_flight.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
