"""Runs of a benchmark that goes on where it stopped, and what it leaves in ``results/``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
from matplotlib import rc_context
from matplotlib.figure import Figure

from marft.config import RunSettings
from marft.runs.folder import RunFolder
from marft.training import train

Row = dict[str, Any]


def kept(path: Path, measure: Callable[[], Row]) -> Row:
    """What an earlier call left at ``path``, or what ``measure`` finds, which is left there."""
    if path.is_file():
        found: Row = json.loads(path.read_text())
        return found
    row = measure()
    path.write_text(json.dumps(row) + "\n")
    return row


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
    print(f"{hours:.2f} hours in all")


def save_plot(results: Path, name: str, figure: Figure) -> None:
    """Write ``<name>.svg``, the same for the same figures."""
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(results / f"{name}.svg", metadata={"Date": None})
