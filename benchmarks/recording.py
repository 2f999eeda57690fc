"""Runs of a benchmark that goes on where it stopped, and what it leaves in ``results/``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
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

from marft.cli.commands import quieten
from marft.config import RunSettings
from marft.evaluation.evaluate import Mode
from marft.evaluation.intervals import wilson
from marft.evaluation.session import BASE, evaluate_checkpoints
from marft.runs import atomic
from marft.runs.folder import RunFolder
from marft.training import train

CURVES = ("accuracy", "reward", "policy_loss", "critic/loss", "kl", "entropy")
Row = dict[str, Any]
Job = tuple[str, Callable[[], Row]]  # a name of its own, and a function of a module, with its arguments


def parser_of(text: str | None, name: str) -> argparse.ArgumentParser:
    """The options that every benchmark of many runs has."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks of each evaluation")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time, which share the cores")
    parser.add_argument("--output", type=Path, default=Path("runs") / name)
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    return parser


def measure(jobs: Sequence[Job], output: Path, workers: int, describe: Callable[[Row], str]) -> list[Row]:
    """The rows of all jobs, in their order. What an earlier call finished is read from ``<output>/<name>.json``."""
    output.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = {}
    todo: list[Job] = []
    for name, job in jobs:
        path = output / f"{name}.json"
        if path.is_file():
            rows[name] = json.loads(path.read_text())
        else:
            todo.append((name, job))
    with Progress() as progress:
        bar = progress.add_task("runs", total=len(jobs), completed=len(rows))
        for name, row in _run(todo, workers):
            atomic.write_file(output / f"{name}.json", json.dumps(row) + "\n")
            rows[name] = row
            progress.console.print(f"{describe(row)}  ({row['seconds']:.0f} s of training)", highlight=False)
            progress.advance(bar)
    return [rows[name] for name, _ in jobs]


def _run(jobs: Sequence[Job], workers: int) -> Any:
    """Pairs of name and row, as they are finished."""
    if workers == 1:
        quieten()
        yield from ((name, job()) for name, job in jobs)
        return
    threads = max(1, (os.cpu_count() or workers) // workers)
    context = multiprocessing.get_context("spawn")
    pool: Executor = ProcessPoolExecutor(workers, context, partial(_begin_worker, threads))
    with pool:
        running: dict[Future[Row], str] = {pool.submit(job): name for name, job in jobs}
        for future in as_completed(running):
            yield running[future], future.result()


def _begin_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    quieten()


def train_and_evaluate(
    run: RunSettings, tasks: int, checkpoints: Sequence[str] = ("last",), modes: Sequence[Mode] = ("sampled",)
) -> Row:
    """Train a run to its end, from wherever it stands, and evaluate it → its curves, accuracies and seconds."""
    began = time.perf_counter()
    folder = RunFolder(Path(run.output) / run.name)
    started = folder.config.exists()
    train(run, folder if started else RunFolder.create(run), resume=started)
    evaluations = evaluate_checkpoints(run, folder, checkpoints, modes, tasks, False, lambda _=None: None)
    metrics = folder.read_metrics()
    return {
        "seed": run.seed,
        "tasks": evaluations[0].tasks,
        "before": {e.mode: e.accuracy for e in evaluations if e.checkpoint == BASE},
        "after": {e.mode: e.accuracy for e in evaluations if e.checkpoint != BASE},
        "curves": {name: [row.get(name) for row in metrics] for name in CURVES},
        "episodes": [row["episodes"] for row in metrics],
        "seconds": sum(row["seconds"] for row in metrics),
        "wall_seconds": time.perf_counter() - began,
    }


def interval(rows: Sequence[Row], when: str = "after") -> tuple[float, float]:
    """95 % interval of the sampled accuracy, over the tasks of all runs."""
    solved = sum(row[when]["sampled"] * row["tasks"] for row in rows)
    return wilson(round(solved), sum(row["tasks"] for row in rows))


def smooth(curve: Sequence[float], over: int = 3) -> npt.NDArray[np.float64]:
    """Means over ``over`` steps in a row: one value fewer for each step more."""
    return np.convolve(np.array(curve, float), np.ones(over) / over, "valid")


def collapsed(row: Row) -> bool:
    """Whether the last three steps are far below the best three in a row."""
    curve = smooth(row["curves"]["accuracy"])
    return bool(curve[-1] < curve.max() - 0.2)


def band(axes: Axes, curves: Sequence[Sequence[float]], label: str) -> None:
    """The mean over seeds and the band from lowest to highest, smoothed over three steps."""
    smoothed = [smooth(curve) for curve in curves]
    steps = np.arange(3, 3 + len(smoothed[0]))
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
    print(f"{hours:.2f} hours of runs in all")


def save_plot(results: Path, name: str, figure: Figure) -> None:
    """Write ``<name>.svg``, the same for the same figures."""
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(results / f"{name}.svg", metadata={"Date": None})
