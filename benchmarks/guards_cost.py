"""Measure what guards cost in a training step of the demo: their text metrics, agent probes and checks.

    python benchmarks/guards_cost.py

Each part is timed where a run calls it. The time of a step is from ``metrics.jsonl``, without the first step. Indirect
costs are not included, such as scores under the base that only guards need. Writes results/guards_cost.md, with the
machine's load before and after.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import machine

from marft.cli.handlers import silence_transformers
from marft.common import atomic
from marft.config.load import load_recipe
from marft.evaluation import episode_metrics as metrics
from marft.evaluation.guards.monitor import GuardMonitor
from marft.runs.run_folder import RunFolder
from marft.trainer.diagnostics import Diagnostics
from marft.trainer.train import train

PARTS = {  # name → owner and attribute of the function
    "metrics of texts": (metrics, "compute_text_metrics"),
    "probes of agents": (Diagnostics, "measure"),
    "looks at all metrics": (GuardMonitor, "check"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    silence_transformers()
    atomic.write_file(arguments.results / "guards_cost.md", page(*measure(arguments.steps), arguments.steps))


def measure(steps: int) -> tuple[list[float], dict[str, list[float]], tuple[float, float]]:
    """Return the seconds of each step, of each part by step, and the machine's load before and after."""
    taken = {name: timed(*where) for name, where in PARTS.items()}
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as output:
        run = load_recipe(Path("demo"), ["--output", output, "--training.steps", str(steps)])
        folder = RunFolder.create(run)
        train(run, folder)
        seconds = [float(row["seconds"]) for row in folder.read_metrics()]
    parts = {name: of[-steps:][1:] for name, of in taken.items()}
    return seconds[1:], parts, (before, os.getloadavg()[0])


def timed(owner: Any, name: str) -> list[float]:
    """Time a function for the rest of this process; return the growing list of its calls' seconds."""
    function: Callable[..., Any] = getattr(owner, name)
    seconds: list[float] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            seconds.append(time.perf_counter() - began)

    setattr(owner, name, watched)
    return seconds


def page(seconds: list[float], parts: dict[str, list[float]], load: tuple[float, float], steps: int) -> str:
    """Return the page: medians over steps, and the share of all parts in all steps."""
    about = machine.describe()
    rows = [f"| {name} | {1000 * median(of):.1f} ms | {sum(of) / sum(seconds):.2%} |" for name, of in parts.items()]
    whole = sum(map(sum, parts.values())) / sum(seconds)
    return "\n".join([
        "# Cost of guards in a step", "",
        f"`python benchmarks/guards_cost.py --steps {steps}`: the demo, {len(seconds)} steps after the first, "
        f"{median(seconds):.2f} s each (median); {about['processor']}, {about['cores']} cores, load "
        f"{load[0]:.1f} before and {load[1]:.1f} after.", "",
        "| part | a step (median) | share of all steps |", "| --- | ---: | ---: |", *rows,
        f"| all | | {whole:.2%} |", "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
