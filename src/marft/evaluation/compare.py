"""Runs side by side: each evaluated checkpoint against its own base, on the same tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from marft.evaluation.intervals import paired_difference
from marft.runs.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Gain:
    """A checkpoint's accuracy, and what it gained over the base on the tasks that both scored."""

    run: str
    checkpoint: str
    mode: str
    tasks: int
    base: float | None
    accuracy: float
    interval: tuple[float, float]
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    shuffle_cost: float | None = None  # accuracy lost when agents see messages of other tasks


def gains_of(folders: Sequence[RunFolder]) -> list[Gain]:
    """The rows of several runs. One whose base was not evaluated is held against the first run's, task by task."""
    found = [(folder.path.name, folder.read_evaluations()) for folder in folders]
    first_base = [e for e in found[0][1] if e["checkpoint"] == "base"]
    rows = []
    for name, evaluations in found:
        has_base = any(e["checkpoint"] == "base" for e in evaluations)
        rows += gains(name, evaluations if has_base else [*first_base, *evaluations])
    return rows


def gains(name: str, evaluations: Sequence[Mapping[str, Any]]) -> list[Gain]:
    """One row for each evaluated checkpoint but the base, from the evaluations of one run."""
    own = {(e["checkpoint"], e["mode"]): e for e in evaluations if not e["shuffled_messages"]}
    shuffled = {(e["checkpoint"], e["mode"]): e for e in evaluations if e["shuffled_messages"]}
    rows = []
    for (checkpoint, mode), after in sorted(own.items()):
        if checkpoint == "base":
            continue
        before, probe = own.get(("base", mode)), shuffled.get((checkpoint, mode))
        difference = _paired(before, after) if before else None
        rows.append(
            Gain(
                run=name,
                checkpoint=checkpoint,
                mode=mode,
                tasks=after["tasks"],
                base=before["accuracy"] if before else None,
                accuracy=after["accuracy"],
                interval=tuple(after["interval"]),
                gain=difference[0] if difference else None,
                gain_interval=difference[1] if difference else None,
                shuffle_cost=-_paired(after, probe)[0] if probe else None,
            )
        )
    return rows


def comparison_table(folders: Sequence[RunFolder]) -> Table:
    """A table for the terminal.

    Raises:
        ValueError: a run has not been evaluated.
    """
    table = Table(box=None, pad_edge=False)
    for heading in (
        "run",
        "checkpoint",
        "mode",
        "base",
        "accuracy",
        "95 % interval",
        "gain",
        "95 % interval",
        "shuffling costs",
    ):
        table.add_column(heading, justify="left" if heading in ("run", "checkpoint", "mode") else "right")
    rows = gains_of(folders)
    for folder in folders:
        if not any(row.run == folder.path.name for row in rows):
            raise ValueError(f"{folder.path} has no evaluated checkpoint; run:  marft eval {folder.path}")
    for row in rows:
        table.add_row(
            row.run, row.checkpoint, row.mode, percent(row.base), percent(row.accuracy), percent_range(row.interval),
            points(row.gain), point_range(row.gain_interval), points(row.shuffle_cost),
        )  # fmt: skip
    return table


def _paired(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, tuple[float, float]]:
    both = [task for task in before["outcomes"] if task in after["outcomes"]]
    return paired_difference([before["outcomes"][task] for task in both], [after["outcomes"][task] for task in both])


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def points(value: float | None) -> str:
    """A difference of proportions, in points."""
    return "" if value is None else f"{100 * value:+.1f}"


def percent_range(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}"


def point_range(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{points(interval[0])} to {points(interval[1])}"
