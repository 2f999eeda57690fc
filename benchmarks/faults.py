"""Kill processes of the demo (-9) again and again, and check that no episode is lost and that the team learns as much.

    python benchmarks/faults.py                                    # 200 kills in 300 steps: half an hour
    python benchmarks/faults.py --kills 10 --steps 20 --tasks 100 --undisturbed 1
    python benchmarks/faults.py --engine "{ kind = 'vllm' }"       # also kill the separate engine
    python benchmarks/faults.py --cluster                          # use the processes of a Ray cluster

Each kill comes at a random moment of a step, and hits a worker process or a separate engine. Every requested episode
must be recorded once. None may fail, or have a reward without having been played, and no task may be excluded.
Otherwise the script exits with status 1. For comparison, it also trains runs without kills, in one process and with
other seeds. Writes results/faults.json and .md.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import machine

from marft.common.callbacks import Callback
from marft.config import RunSettings, load_recipe
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

KINDS = {
    "worker": b"marft.rollout.workers.worker",
    "engine": b"marft.inference.subprocess_engine.",
}  # text in the command line, by kind of process
SUMS = ("workers_lost", "episodes_retried", "tasks_excluded", "engine_restarts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2, help="number of worker processes")
    parser.add_argument("--engine", default="", help="engine, as in a recipe; default: in process")
    parser.add_argument("--cluster", action="store_true", help="have Ray start the processes")
    parser.add_argument("--undisturbed", type=int, default=3, help="number of runs without kills")
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks of the evaluation")
    parser.add_argument("--output", type=Path, default=Path("runs/faults"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.output, ignore_errors=True)
    options = ["--rollout.workers", str(arguments.processes)]
    options += ["--engine", arguments.engine] if arguments.engine else []
    options += ["--cluster", "{ engine = { gpus = 0.0 } }"] if arguments.cluster else []
    run = recipe(arguments, "killed", options)
    folder = RunFolder.create(run)
    killer = Killer(arguments.kills, run.seed)
    began = time.perf_counter()
    train(run, folder, callbacks=[killer])
    found = {"kills": dict(killer.done), "seconds": time.perf_counter() - began, **counted(run, folder)}
    found["sampled"] = accuracy(run, folder, arguments.tasks)
    found["undisturbed"] = list[float]()
    save(arguments, found)
    for number in range(arguments.undisturbed):
        found["undisturbed"].append(undisturbed(arguments, number))
        save(arguments, found)
    wrong = [found[name] for name in ("lost", "twice", "failed", "unplayed", "tasks_excluded")]
    sys.exit(any(wrong) or killer.done.total() < arguments.kills)


def recipe(arguments: argparse.Namespace, name: str, options: Sequence[str]) -> RunSettings:
    """Return the demo's recipe with the given number of steps."""
    given = ["--output", str(arguments.output), "--name", name, "--training.steps", str(arguments.steps)]
    return load_recipe("demo", [*given, "--device", "cpu", *options])


def undisturbed(arguments: argparse.Namespace, number: int) -> float:
    """Train a run without kills in one process, and return its accuracy."""
    run = recipe(arguments, f"undisturbed_{number}", ["--seed", str(number)])
    folder = RunFolder.create(run)
    train(run, folder)
    return accuracy(run, folder, arguments.tasks)


def accuracy(run: RunSettings, folder: RunFolder, tasks: int) -> float:
    """Return the accuracy on held-out tasks, sampled."""
    (result,) = evaluate_checkpoints(run, folder, EvaluationPlan(["last"], ("sampled",), tasks), lambda *_: None)
    assert result.accuracy is not None
    return result.accuracy


def counted(run: RunSettings, folder: RunFolder) -> dict[str, Any]:
    """Count the requested episodes, and those that were recorded, lost or repeated."""
    wanted = run.training.steps * run.rollout.tasks_per_step * run.rollout.samples_per_task
    keys, failed, unplayed = Counter[tuple[str, str, int]](), 0, 0
    for file in folder.recorded_steps():
        for episode in read_episodes(file):
            keys[episode.stream, episode.task.id, episode.sample] += 1
            failed += not episode.is_scored
            unplayed += episode.is_scored and not (episode.actions and episode.transitions)
    rows = folder.read_metrics()
    return {
        "steps": len(rows),
        "wanted": wanted,
        "recorded": len(keys),
        "lost": wanted - len(keys),
        "twice": sum(count > 1 for count in keys.values()),
        "failed": failed,
        "unplayed": unplayed,  # scored, but without actions or transitions
        **{name: sum(float(row.get(name) or 0) for row in rows) for name in SUMS},
    }


class Killer(Callback):
    """Callback that kills processes of the run, each at a random moment of a random step.

    Args:
        kills: number of kills.
        seed: seed of the moments, the steps and the victims.
    """

    def __init__(self, kills: int, seed: int) -> None:
        self.kills, self.done = kills, Counter[str]()
        self._draw = random.Random(seed)
        self._at = Counter[int]()  # kills by step

    def on_train_start(self, completed_steps: int, steps: int) -> None:  # noqa: ARG002
        self._at.update(self._draw.choices(range(steps - 1), k=self.kills))  # none in the last step
        self._set_off(0, 1.0)

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self._set_off(step, metrics["seconds"])

    def _set_off(self, step: int, seconds: float) -> None:
        for _ in range(self._at[step]):
            timer = threading.Timer(self._draw.uniform(0.0, seconds), self._kill)
            timer.daemon = True  # the run may end first
            timer.start()

    def _kill(self) -> None:
        while not (victims := list(processes())):  # all processes are restarting
            time.sleep(0.1)
        kind, pid = self._draw.choice(victims)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.done[kind] += 1


def processes() -> Iterator[tuple[str, int]]:
    """Yield this run's worker processes and separate engines, by kind, without the subreapers above them."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words, pid = file.read_bytes(), int(file.parent.name)
            kind = next((kind for kind, mark in KINDS.items() if mark in words), "")
            if kind and b"subreaper" not in words and is_ours(pid):
                yield kind, pid


def is_ours(pid: int) -> bool:
    """Return True if a process descends from this one."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


def save(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write the results as JSON and Markdown."""
    met = ", ".join(f"{count} of {kind}s" for kind, count in sorted(found["kills"].items()))
    where = "of a Ray cluster on one machine" if arguments.cluster else "on one machine"
    asked = f' --engine "{arguments.engine}"' * bool(arguments.engine) + " --cluster" * arguments.cluster
    lines = [
        f"The demo for {found['steps']} steps with {arguments.processes} worker processes {where}, engine "
        f"{arguments.engine or 'in process'}: {sum(found['kills'].values())} kills ({met}) at random moments "
        f"(`python benchmarks/faults.py{asked}`):",
        "",
        f"- episodes: {found['wanted']} requested, {found['recorded']} recorded; {found['lost']} lost, {found['twice']}"
        f" recorded twice, {found['failed']} failed, {found['unplayed']} scored without having been played",
        f"- {found['workers_lost']:.0f} workers lost, {found['episodes_retried']:.0f} attempts retried, "
        f"{found['tasks_excluded']:.0f} tasks excluded, {found['engine_restarts']:.0f} engine restarts",
        f"- accuracy, sampled, on {arguments.tasks} tasks: {found['sampled']:.1%}; of runs without kills: "
        + (", ".join(f"{accuracy:.1%}" for accuracy in found["undisturbed"]) or "none"),
        f"- {found['seconds']:.0f} s",
    ]
    arguments.results.mkdir(parents=True, exist_ok=True)
    table = {"machine": machine.describe(), **found}
    (arguments.results / "faults.json").write_text(json.dumps(table, indent=2) + "\n")
    (arguments.results / "faults.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
