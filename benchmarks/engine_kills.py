"""Kill the demo's vLLM process (-9) again and again, and check that no episode is lost and the team still learns.

    marft engine install vllm --cpu
    python benchmarks/engine_kills.py               # ten kills
    python benchmarks/engine_kills.py --kills 2 --steps 6 --tasks 40

Each kill comes at a random moment of a step. Every requested episode must be recorded once, none as failed; otherwise
the script exits with status 1. Writes results/engine_kills.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import machine

from marft.common.callbacks import Callback
from marft.config import RunSettings, load_recipe
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

VLLM = "{ kind = 'vllm', engine_args = { enforce_eager = true } }"
SERVER = b"subprocess_engine.vllm_server"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, help="training steps; default: the demo's")
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks of the evaluation")
    parser.add_argument("--output", type=Path, default=Path("runs/engine_kills"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.output, ignore_errors=True)
    length = () if arguments.steps is None else ("--training.steps", str(arguments.steps))
    run = load_recipe("demo", ["--output", str(arguments.output), "--device", "cpu", "--engine", VLLM, *length])
    folder = RunFolder.create(run)
    killer = Killer(arguments.kills, run.seed)
    began = time.perf_counter()
    train(run, folder, callbacks=[killer])
    found = {"kills": killer.done, "seconds": time.perf_counter() - began, **counted(run, folder)}
    (result,) = evaluate_checkpoints(
        run, folder, EvaluationPlan(["last"], ("sampled",), arguments.tasks), lambda *_: None
    )
    save(arguments.results, {**found, "sampled": result.accuracy})
    sys.exit(bool(found["lost"] or found["twice"] or found["failed"] or found["kills"] < arguments.kills))


def counted(run: RunSettings, folder: RunFolder) -> dict[str, Any]:
    """Count the requested episodes, and those that were recorded, lost or repeated."""
    wanted = run.training.steps * run.rollout.tasks_per_step * run.rollout.samples_per_task
    episodes = [episode for file in sorted(folder.episodes.glob("step_*.parquet")) for episode in read_episodes(file)]
    keys = Counter((episode.stream, episode.task.id, episode.sample) for episode in episodes)
    rows = folder.read_metrics()
    return {
        "steps": len(rows),
        "restarts": sum(float(row.get("engine_restarts") or 0) for row in rows),
        "wanted": wanted,
        "recorded": len(keys),
        "lost": wanted - len(keys),
        "twice": sum(count > 1 for count in keys.values()),
        "failed": sum(episode.status in ("failed", "timed_out") for episode in episodes),
        "furthest": max(float(row.get("log_prob_difference_max") or 0) for row in rows),
    }


class Killer(Callback):
    """Callback that kills vLLM's process in ``kills`` steps, spread over the run.

    Args:
        kills: number of kills.
        seed: seed of the random moments.
    """

    def __init__(self, kills: int, seed: int) -> None:
        self.kills, self.done = kills, 0
        self._draw = random.Random(seed)
        self._at: set[int] = set()

    def on_train_start(self, completed_steps: int, steps: int) -> None:  # noqa: ARG002
        self._at = set(self._draw.sample(range(1, steps), self.kills))

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        if step in self._at:
            threading.Timer(self._draw.uniform(0, 5.0), self._kill).start()

    def _kill(self) -> None:
        while not (processes := servers()):  # vLLM is restarting
            time.sleep(0.5)
        os.kill(processes[0], signal.SIGKILL)
        self.done += 1


def servers() -> list[int]:
    """Return the process ids of vLLM servers, without the subreapers above them."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes()
            found += [int(file.parent.name)] if SERVER in words and b"subreaper" not in words else []
    return found


def save(results: Path, found: dict[str, Any]) -> None:
    """Write the results as JSON and Markdown."""
    lines = [
        f"vLLM's process was killed {found['kills']} times in {found['steps']} steps of the demo, and restarted"
        f" {found['restarts']:.0f} times (`python benchmarks/engine_kills.py`):",
        "",
        f"- episodes: {found['wanted']} requested, {found['recorded']} recorded; {found['lost']} lost, {found['twice']}"
        f" recorded twice, {found['failed']} failed",
        f"- log-probs: at most {found['furthest']:.1e} nats from the learner's",
        f"- accuracy, sampled: {found['sampled']:.1%}",
        f"- {found['seconds']:.0f} s",
    ]
    results.mkdir(parents=True, exist_ok=True)
    (results / "engine_kills.json").write_text(json.dumps({"machine": machine.describe(), **found}, indent=2) + "\n")
    (results / "engine_kills.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
