"""Resumable runs of a benchmark, and their results in ``results/``."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import machine
import numpy as np
import numpy.typing as npt
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.progress import Progress

from marft.cli.handlers import silence_transformers
from marft.common import atomic
from marft.config import RunSettings, parse_recipe, to_toml
from marft.evaluation.evaluate import Mode
from marft.evaluation.session import BASE, EvaluationPlan, evaluate_checkpoints
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

CURVES = ("accuracy", "reward", "policy_loss", "critic/loss", "kl", "entropy")
Row = dict[str, Any]
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}  # 97.5 % quantile by n - 1


@dataclass(frozen=True, slots=True)
class Job:
    """A run to train and evaluate, and further fields of its row."""

    run: RunSettings
    tasks: int
    about: Mapping[str, Any]
    checkpoints: tuple[str, ...] = ("last",)
    modes: tuple[Mode, ...] = ("sampled",)
    steps_per_point: int = 1  # training steps per point of the curves
    samples: int = 0  # tasks whose sampled texts the row stores
    shuffle_messages: bool = False  # True: also evaluate the last checkpoint, sampled, with messages of other tasks
    curves: tuple[str, ...] = CURVES  # metrics whose curves the row stores

    @property
    def recipe(self) -> str:
        """Everything that the figures depend on."""
        about = (self.tasks, dict(self.about), self.checkpoints, self.modes, self.steps_per_point)
        return to_toml(self.run) + repr(about)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.recipe.encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        return Path(self.run.output) / f"{self.run.name}.json"


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark with many runs."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks per evaluation")
    parser.add_argument("--workers", type=int, default=1, help="number of concurrent runs, which share the cores")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    return parser


def measure(jobs: Sequence[Job], workers: int, describe: Callable[[Row], str]) -> list[Row]:
    """Return the rows of all jobs, in order. Finished jobs are not run again."""
    rows: dict[str, Row] = {}
    todo: list[Job] = []
    for job in jobs:
        if job.path.is_file():
            rows[job.run.name] = json.loads(job.path.read_text())
            if rows[job.run.name]["digest"] != job.digest:
                raise SystemExit(f"{job.path} was measured with other settings; delete it, or use another --output")
        else:
            todo.append(job)
    with Progress() as progress:
        bar = progress.add_task("runs", total=len(jobs), completed=len(rows))
        for job, row in _run(todo, workers):
            atomic.write_file(job.path, json.dumps(row) + "\n")
            rows[job.run.name] = row
            progress.console.print(f"{describe(row)}  ({row['seconds']:.0f} s of training)", highlight=False)
            progress.advance(bar)
    return [rows[job.run.name] for job in jobs]


def _run(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Row]]:
    """Yield each job with its row as it finishes."""
    if workers == 1:
        silence_transformers()
        yield from ((job, train_and_evaluate(job)) for job in jobs)
        return
    threads = max(1, (os.cpu_count() or workers) // workers)
    context = multiprocessing.get_context("spawn")
    pool: Executor = ProcessPoolExecutor(workers, context, partial(_begin_worker, threads))
    with pool:
        running = {pool.submit(_on_worker, replace(job, run=None), to_toml(job.run)): job for job in jobs}  # type: ignore[arg-type]
        for future in as_completed(running):
            yield running[future], future.result()


def _begin_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    silence_transformers()


def _on_worker(job: Job, recipe: str) -> Row:
    return train_and_evaluate(replace(job, run=parse_recipe(tomllib.loads(recipe))))


def train_and_evaluate(job: Job) -> Row:
    """Train a run to its end, resuming it, and evaluate it; return its curves, accuracies and seconds."""
    began, run = time.perf_counter(), job.run
    folder = RunFolder(Path(run.output) / run.name)
    started = folder.config_path.exists()
    if started and folder.config_path.read_text(encoding="utf-8") != to_toml(run):
        raise SystemExit(f"{folder.path} was trained with other settings; delete it, or use another --output")
    train(run, folder if started else RunFolder.create(run), resume=started)
    evaluations = evaluate_checkpoints(
        run, folder, EvaluationPlan(job.checkpoints, job.modes, job.tasks), lambda _=None: None
    )
    without = shuffled_accuracy(run, folder, job.tasks) if job.shuffle_messages else {}
    metrics = folder.read_metrics()
    return {
        **job.about,
        **without,
        "seed": run.seed,
        "tasks": evaluations[0].tasks,
        "before": {e.mode: e.accuracy for e in evaluations if e.checkpoint == BASE},
        "after": {e.mode: e.accuracy for e in evaluations if e.checkpoint != BASE},
        "agents": {
            when: {e.mode: e.agents for e in evaluations if (e.checkpoint == BASE) == (when == "before")}
            for when in ("before", "after")
        },
        "samples": {
            when: [
                one
                for e in evaluations
                if e.mode == "sampled" and (e.checkpoint == BASE) == (when == "before")
                for one in e.examples[: job.samples]
            ]
            for when in ("before", "after")
        },
        "curves": {
            name: points([row.get(name) for row in metrics], job.steps_per_point)
            for name in (*job.curves, "message_tokens")
        },
        "episodes": [sum(part) for part in _parts([row["episodes"] for row in metrics], job.steps_per_point)],
        "actions": [sum(part) for part in _parts([row["sampled_actions"] for row in metrics], job.steps_per_point)],
        "seconds": sum(row["seconds"] for row in metrics),
        "wall_seconds": time.perf_counter() - began,
        "digest": job.digest,
    }


def shuffled_accuracy(run: RunSettings, folder: RunFolder, tasks: int) -> Row:
    """Return ``{"shuffled": accuracy}`` of the last checkpoint, sampled, with messages of other tasks."""
    found = evaluate_checkpoints(
        run, folder, EvaluationPlan(("last",), ("sampled",), tasks, shuffled_too=True), lambda _=None: None
    )
    return {"shuffled": next(e.accuracy for e in found if e.shuffled_messages)}


def points(curve: Sequence[float | None], steps: int) -> list[float | None]:
    """Return a curve with one point per ``steps`` training steps: the mean of the known values.

    >>> points([1.0, 3.0, None, 5.0, None], steps=2)
    [2.0, 5.0, None]
    """
    known = [[value for value in part if value is not None] for part in _parts(curve, steps)]
    return [float(np.mean(part)) if part else None for part in known]


def _parts(curve: Sequence[Any], steps: int) -> list[Sequence[Any]]:
    return [curve[first : first + steps] for first in range(0, len(curve), steps)]


def interval(rows: Sequence[Row], when: str = "after", mode: Mode = "sampled") -> str:
    """Return the 95 % interval of the mean accuracy over seeds (Student's t).

    It includes the variation between seeds.
    """
    values = np.array([row[when][mode] for row in rows])
    if len(values) < 2:
        return "one seed"
    half = STUDENT[len(values) - 1] * values.std(ddof=1) / math.sqrt(len(values))
    return f"{max(0.0, values.mean() - half):.1%} to {min(1.0, values.mean() + half):.1%}"


def smooth(curve: Sequence[float], over: int = 3) -> npt.NDArray[np.float64]:
    """Return the moving mean over ``over`` points, which is ``over - 1`` values shorter."""
    return np.convolve(np.array(curve, float), np.ones(over) / over, "valid")


def collapsed(row: Row) -> bool:
    """Return True if the mean of the curve's last three points is far below that of the best three in a row."""
    curve = smooth(row["curves"]["accuracy"])
    return bool(curve[-1] < curve.max() - 0.2)


def band(axes: Axes, curves: Sequence[Sequence[float]], label: str, steps_per_point: int = 1) -> None:
    """Plot the mean over seeds with a band from minimum to maximum, smoothed over three points."""
    smoothed = [smooth(curve) for curve in curves]
    steps = steps_per_point * np.arange(3, 3 + len(smoothed[0]))
    (line,) = axes.plot(steps, np.mean(smoothed, axis=0), label=label, linewidth=1.4)
    axes.fill_between(
        steps, np.min(smoothed, axis=0), np.max(smoothed, axis=0), alpha=0.15, color=line.get_color(), linewidth=0
    )


def tidy(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def save_rows(results: Path, name: str, rows: Sequence[Row], table: str) -> None:
    """Write ``<name>.json`` and ``<name>.md``, and print the table."""
    results.mkdir(exist_ok=True, parents=True)
    hours = sum(row["wall_seconds"] for row in rows) / 3600
    summary = {"machine": machine.describe(), "hours": hours, "runs": list(rows)}
    (results / f"{name}.json").write_text(json.dumps(summary, indent=2) + "\n")
    (results / f"{name}.md").write_text(table)
    print(table)
    print(f"{hours:.2f} hours of runs in total")


def stored_rows(results: Path, name: str) -> list[Row]:
    """Return the rows that an earlier call saved; [] without an earlier call."""
    path = results / f"{name}.json"
    return list(json.loads(path.read_text())["runs"]) if path.is_file() else []


def save_plot(results: Path, name: str, figure: Figure) -> None:
    """Write ``<name>.svg``. Equal figures give equal files."""
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(results / f"{name}.svg", metadata={"Date": None})
