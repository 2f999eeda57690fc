"""Measure a step of the demo while other processes keep the cores busy, by threads and by how threads wait.

    python benchmarks/shared_machine.py
    python benchmarks/shared_machine.py --loads 0,2 --threads 1,2 --steps 3

Threads of a pool wait for each other many times per step. If another process has the core, a pool that spins while it
waits uses the time that the awaited thread needs. A pool that sleeps (OMP_WAIT_POLICY=passive) pays for every wake-up.
The table has the median of the steps after the first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine

WAITING = {
    "as torch does": {"GOMP_SPINCOUNT": "300000"},  # GNU OpenMP's default
    "asleep at once": {"OMP_WAIT_POLICY": "passive"},
    "as MARFT does": {},
}
NEVER = 400.0  # timeout of a run, in seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default="0,1,2,4", help="numbers of busy processes beside the run")
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    rows = []
    for load in map(int, arguments.loads.split(",")):
        for threads in arguments.threads.split(","):
            for waiting in ("as MARFT does",) if threads == "1" else tuple(WAITING):
                with busy(load):
                    seconds = step_seconds(arguments.recipe, threads, WAITING[waiting], arguments.steps)
                rows.append({"load": load, "threads": threads, "waiting": waiting, "seconds": seconds})
                print(f"load {load}  threads {threads}  {waiting:14s} {seconds:7.2f} s a step", flush=True)
    save(arguments.results, rows)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run other processes that compute without a pause."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def step_seconds(recipe: str, threads: str, waiting: dict[str, str], steps: int) -> float:
    """Return the median seconds of a run's steps, without the first; infinity on a timeout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "GOMP_"))}
    with tempfile.TemporaryDirectory() as output:
        words = ["--output", output, "--name", "run", "--threads", threads, "--training.steps", str(steps)]
        command = [sys.executable, "-m", "marft", "train", recipe, *words]
        try:
            subprocess.run(command, env=environment | waiting, timeout=NEVER, check=True, stdout=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return float("inf")
        lines = (Path(output) / "run" / "metrics.jsonl").read_text().splitlines()
    return statistics.median(float(json.loads(line)["seconds"]) for line in lines[1:])


def save(results: Path, rows: Sequence[dict[str, Any]]) -> None:
    results.mkdir(parents=True, exist_ok=True)
    loads = sorted({row["load"] for row in rows})
    lines = [
        f"| threads | waiting | {' | '.join(f'load {load}' for load in loads)} |",
        f"| --- | --- |{' ---: |' * len(loads)}",
    ]
    for threads, waiting in dict.fromkeys((row["threads"], row["waiting"]) for row in rows):
        mine = {row["load"]: row["seconds"] for row in rows if (row["threads"], row["waiting"]) == (threads, waiting)}
        lines.append(f"| {threads} | {waiting} | {' | '.join(f'{mine[load]:.2f}' for load in loads)} |")
    (results / "shared_machine.md").write_text("\n".join(lines) + "\n")
    summary = {"machine": machine.describe(), "rows": rows}
    (results / "shared_machine.json").write_text(json.dumps(summary, indent=2) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
