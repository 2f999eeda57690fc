"""Train the demo team asynchronously in a slow environment, at lag 0, 1, 2 and 4.

    python benchmarks/lag.py
    python benchmarks/lag.py --seeds 3
    python benchmarks/lag.py --name lag_rates --seeds 3 --lags 2 4 --settings plain lower-rate decaying-rate

Every environment step of a training episode takes a random time (log-normal, with a median of one second). Held-out
tasks take none. The in-process engine evaluates the saved checkpoints afterwards: accuracy over sampled actions, and
over seconds. Interrupted runs resume. Writes results/NAME.json, .md and .svg. With several seeds, the results have
mean, minimum and maximum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import machine
from matplotlib.figure import Figure

from marft.common.types import JointAction, Step, Task
from marft.config import RunSettings, load_recipe
from marft.envs.graded_sessions import SingleTurn
from marft.envs.reasoning_gym import ReasoningGym
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

STEPS, EVERY = 24, 6
SETTINGS = (
    "--rollout.tasks_per_step", "8", "--training.steps", str(STEPS), "--checkpoints.every", str(EVERY),
    "--checkpoints.keep_last", str(STEPS), "--device", "cpu", "--sinks", "[]",
)  # fmt: skip
LAG = ("--engine", "{ kind = 'process', threads = 1 }", "--threads", "1", "--environment.name", "lag:Slow")
OTHER_SETTINGS = {  # settings of the algorithm, by name in the table
    "plain": (),
    "lower-rate": ("--algorithm.optimizer.learning_rate", "2e-4"),
    "decaying-rate": ("--algorithm.optimizer.schedule", "linear"),
    "banded": ("--algorithm.sampler_correction", "{ level = 'geometric', mask_low = 0.8, mask_high = 1.25 }"),
    "whole-actions": ("--algorithm.sampler_correction", "{ level = 'action' }"),
}
MEASURED = {"seconds": ".0f", "idle": ".0%", "overlap": ".0%", "oldest": ".0f", "ess": ".3f"}
MEDIAN, SPREAD = 1.0, 0.6  # seconds, and standard deviation of their logarithm


class Slow(ReasoningGym):
    """Environment whose training episodes have slow steps."""

    @cached_property
    def _training(self) -> frozenset[str]:
        return frozenset(task.id for task in self.tasks("train"))

    def start(self, task: Task, seed: int) -> SingleTurn:
        session = SlowSession(task, lambda text: self._grade(task, text))
        session.seconds = MEDIAN * random.Random(seed).lognormvariate(0.0, SPREAD) if task.id in self._training else 0.0
        return session


class SlowSession(SingleTurn):
    seconds = 0.0

    async def step(self, actions: JointAction) -> Step:
        await asyncio.sleep(self.seconds)
        return await super().step(actions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="seeds per setting, from 0 on")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--settings", nargs="+", choices=OTHER_SETTINGS, default=["plain"])
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks per evaluation")
    parser.add_argument("--name", default="lag", help="file name of the results")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument("--only-train", action="store_true", help="train only; a later call evaluates")
    arguments = parser.parse_args()
    changes = (*LAG, "--rollout.max_policy_lag")
    folders = {
        (lag, other, seed): trained(
            arguments.output / "lag",
            f"lag_{lag}-{seed}" if other == "plain" else f"lag_{lag}_{other}-{seed}",
            seed,
            (*changes, str(lag), *OTHER_SETTINGS[other]),
        )
        for seed in range(arguments.seeds)
        for lag in arguments.lags
        for other in arguments.settings
    }
    if arguments.only_train:
        return
    rows = [
        {"lag": lag, "settings": other, "seed": seed, **measured(folder), "curve": curve(folder, arguments.tasks)}
        for (lag, other, seed), folder in folders.items()
    ]
    save(arguments.results, arguments.name, rows, table_of(rows), plot(rows, "lag", ("actions", "seconds")))


def table_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per lag and setting, over the seeds."""
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["lag"], row["settings"]), []).append(row)
    steps = [point["step"] for point in rows[0]["curve"][1:]]
    headings = [
        "lag", "settings", "seeds", *(f"step {step}" for step in steps), "greedy", "seconds", "learner idle", "overlap",
        "oldest action", "ess",
    ]  # fmt: skip
    table = [f"| {' | '.join(headings)} |", f"| ---: | --- |{' ---: |' * (len(headings) - 2)}"]
    for (lag, other), runs in sorted(groups.items()):
        sampled = [spread([run["curve"][place + 1]["sampled"] for run in runs], ".1%") for place in range(len(steps))]
        cells = [
            str(lag), other, str(len(runs)), *sampled, spread([run["curve"][-1]["greedy"] for run in runs], ".1%"),
            *(spread([run[name] for run in runs], form) for name, form in MEASURED.items()),
        ]  # fmt: skip
        table.append(f"| {' | '.join(cells)} |")
    return table


def spread(values: Sequence[float], form: str) -> str:
    """Format the mean; with several values, also minimum and maximum.

    >>> spread([0.5], ".1%"), spread([0.25, 0.75], ".0%")
    ('50.0%', '50% (25%–75%)')
    """
    mean = format(sum(values) / len(values), form)
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}}–{max(values):{form}})"


def trained(output: Path, name: str, seed: int, changes: Sequence[str]) -> RunFolder:
    """Train the demo to its end, from its newest checkpoint if there is one."""
    where = ("--output", str(output), "--name", name, "--seed", str(seed))
    run = load_recipe("demo", [*where, *SETTINGS, *changes])
    path = Path(run.output) / run.name
    begun = path.exists()
    folder = RunFolder.open(path) if begun else RunFolder.create(run)
    if len(folder.read_metrics()) < run.training.steps:
        train(run, folder, resume=begun)
    return folder


def measured(folder: RunFolder) -> dict[str, float]:
    """Return a run's figures over all steps."""
    rows = folder.read_metrics()
    seconds = sum(row["seconds"] for row in rows)
    overlaps = [row["async/overlap"] for row in rows[1:] if "async/overlap" in row]
    return {
        "seconds": seconds,
        "learning": sum(row["seconds/learning"] for row in rows),
        "idle": sum(row["seconds/sampling"] for row in rows) / seconds,
        "overlap": sum(overlaps) / len(overlaps) if overlaps else 0.0,
        "oldest": max(row.get("policy_lag_max", 0.0) for row in rows),
        "ess": min(row.get("ess", 1.0) for row in rows),
    }


def curve(folder: RunFolder, tasks: int) -> list[dict[str, float]]:
    """Return the held-out accuracy of every checkpoint with its cost so far; store it in the run's folder."""
    kept = folder.path / f"curve_{tasks}.json"
    if kept.is_file():
        return list(json.loads(kept.read_text(encoding="utf-8")))
    rows, run = folder.read_metrics(), in_process(folder)
    names = ["base", *(path.name for path in folder.saved_steps())]
    found = evaluate_checkpoints(run, folder, EvaluationPlan(names, ("greedy", "sampled"), tasks), lambda *_: None)
    points: list[dict[str, float]] = []
    for name in names:
        done = rows[: int(name.rpartition("_")[2])] if name != "base" else []
        accuracies = {str(one.mode): one.accuracy or 0.0 for one in found if one.checkpoint == name}
        taken = {"actions": "sampled_actions", "seconds": "seconds", "learning": "seconds/learning"}
        sums = {name: sum(row[metric] for row in done) for name, metric in taken.items()}
        points.append({"step": len(done), **sums, **accuracies})
    kept.write_text(json.dumps(points, indent=2) + "\n", encoding="utf-8")
    return points


def in_process(folder: RunFolder) -> RunSettings:
    """Return a run's recipe for evaluation in this process."""
    return load_recipe(folder.config_path, ["--rollout.max_policy_lag", "0", "--engine", "{ kind = 'local' }"])


def plot(rows: Sequence[Mapping[str, Any]], of: str, over: Sequence[str]) -> Figure:
    """Plot held-out accuracy over each cost, a panel per cost."""
    labels = {"actions": "actions sampled", "seconds": "seconds of training", "learning": "seconds of learning"}
    figure = Figure(figsize=(4.6 * len(over), 3.6), layout="constrained")
    values = sorted({(row[of], row.get("settings", "plain")) for row in rows})
    for axes, name in zip(figure.subplots(1, len(over), sharey=True, squeeze=False).flat, over, strict=True):
        for row in rows:
            points = row["curve"]
            other = row.get("settings", "plain")
            number = values.index((row[of], other))
            said = f"{of} {row[of]}" if other == "plain" else f"{of} {row[of]}, {other}"
            label = said if row["seed"] == rows[0]["seed"] else None
            accuracies = [100 * point["sampled"] for point in points]
            axes.plot([point[name] for point in points], accuracies, color=f"C{number}", marker="o", ms=3, label=label)
        axes.set_xlabel(labels[name])
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("held-out accuracy, sampled, %")
    figure.axes[0].legend()
    return figure


def save(results: Path, name: str, rows: Sequence[Mapping[str, Any]], table: Sequence[str], figure: Figure) -> None:
    """Write figures, table and plot."""
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=2) + "\n")
    (results / f"{name}.md").write_text("\n".join(table) + "\n")
    figure.savefig(results / f"{name}.svg")
    print("\n".join(table), flush=True)


if __name__ == "__main__":
    main()
