"""Runs of a benchmark that goes on where it stopped, and what it leaves in ``results/``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import machine
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.progress import Progress

from marft.cli.commands import quieten
from marft.config import RunSettings
from marft.runs import atomic
from marft.runs.folder import RunFolder
from marft.training import train

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


def finish(run: RunSettings) -> RunFolder:
    """Train a run to its end, from wherever it stands."""
    folder = RunFolder(Path(run.output) / run.name)
    started = folder.config.exists()
    train(run, folder if started else RunFolder.create(run), resume=started)
    return folder


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
