"""Runs side by side: each evaluated checkpoint against its own base, on the same tasks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from marft.common.texts import one_line
from marft.evaluation.definitions import check_tools
from marft.evaluation.intervals import mean_interval, paired_difference
from marft.runs.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of a checkpoint, and what it gained over the base on the tasks of which both have it."""

    base: float | None
    value: float
    interval: tuple[float, float] | None
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    shuffle_cost: float | None = None  # what is lost when agents see messages of other tasks


@dataclass(frozen=True, slots=True)
class Gain:
    """How an evaluated checkpoint did. ``accuracy`` is absent where the environment never says what is a success."""

    run: str
    checkpoint: str
    mode: str
    tasks: int
    unknown: int
    accuracy: Measured | None
    reward: Measured | None

    def measured(self, measure: str) -> Measured | None:
        return self.accuracy if measure == "accuracy" else self.reward


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
        rows.append(
            Gain(
                run=name,
                checkpoint=checkpoint,
                mode=mode,
                tasks=after["tasks"],
                unknown=after.get("unknown", 0),
                accuracy=_measured(before, after, probe, "accuracy"),
                reward=_measured(before, after, probe, "reward"),
            )
        )
    return rows


def not_evaluated(folders: Sequence[RunFolder]) -> list[str]:
    """Which runs have nothing to show beside others, and what to do."""
    return [
        f"{folder.path} has no evaluated checkpoint; run:  marft eval {folder.path}"
        for folder in folders
        if not gains(folder.path.name, folder.read_evaluations())
    ]


def measures_of(rows: Sequence[Gain]) -> list[str]:
    """What there is to show, what matters most first: accuracy, where anything has one, then reward."""
    return [measure for measure in ("accuracy", "reward") if any(row.measured(measure) for row in rows)]


def comparison_tables(folders: Sequence[RunFolder], other_tools: bool = False) -> list[Table]:
    """Tables for the terminal, one a measure.

    Args:
        other_tools: they may have been played with other definitions of tools.

    Raises:
        ValueError: a run has not been evaluated, or with other tools than the first.
    """
    missing = [str(folder.path) for folder in folders if not gains(folder.path.name, folder.read_evaluations())]
    if missing:
        have = "have no evaluated checkpoint" if len(missing) > 1 else "has no evaluated checkpoint"
        raise ValueError(f"{' and '.join(missing)} {have}; run:  marft eval {' '.join(map(shlex.quote, missing))}")
    if not other_tools:
        _refuse_other_tools(folders)
    rows = gains_of(folders)
    return [_table(rows, measure) for measure in measures_of(rows)]


def _refuse_other_tools(folders: Sequence[RunFolder]) -> None:
    """
    Raises:
        ValueError: agents were told other things of their tools in two evaluations that would stand beside each other.
    """
    told = [
        (f"{folder.path} ({evaluation['checkpoint']})", evaluation)
        for folder in folders
        for evaluation in folder.read_evaluations()
        if evaluation.get("tools") is not None
    ]
    for name, evaluation in told[1:]:
        check_tools(told[0][1], evaluation, (told[0][0], name))


def _table(rows: Sequence[Gain], measure: str) -> Table:
    table = Table(box=None, pad_edge=False)
    left = ("run", "checkpoint", "mode")
    unknown = measure == "accuracy" and any(row.unknown for row in rows)
    for heading in (
        *left, "base", measure, "95 % interval", "gain", "95 % interval", "shuffling costs",
        *(["success unknown"] if unknown else []),
    ):  # fmt: skip
        whole = heading != "run" and " " not in heading  # the others break in a narrow terminal, and lose nothing
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=whole, overflow="fold")
    for row in rows:
        shown = row.measured(measure)
        if shown is not None:
            cells = (
                row.run,
                row.checkpoint,
                row.mode,
                *cells_of(shown, measure),
                *([str(row.unknown)] if unknown else []),
            )
            table.add_row(*(Text(one_line(cell)) for cell in cells))
    return table


def cells_of(shown: Measured, measure: str) -> tuple[str, ...]:
    """Base, value, its interval, gain, its interval, and what shuffled messages cost."""
    value, difference = (percent, points) if measure == "accuracy" else (number, signed)
    return (
        value(shown.base), value(shown.value), between(shown.interval, value), difference(shown.gain),
        between(shown.gain_interval, difference), difference(shown.shuffle_cost),
    )  # fmt: skip


def _measured(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], probe: Mapping[str, Any] | None, measure: str
) -> Measured | None:
    """A measure of an evaluation; None where it has none. What earlier versions did not save is left out."""
    if after.get(measure) is None:
        return None
    interval = after.get("interval" if measure == "accuracy" else "reward_interval")
    gain = _paired(before, after, measure) if before else None
    cost = _paired(after, probe, measure) if probe else None
    return Measured(
        base=before.get(measure) if before else None,
        value=after[measure],
        interval=tuple(interval) if interval else None,
        gain=gain[0] if gain else None,
        gain_interval=gain[1] if gain else None,
        shuffle_cost=-cost[0] if cost else None,
    )


def _paired(
    before: Mapping[str, Any], after: Mapping[str, Any], measure: str
) -> tuple[float, tuple[float, float] | None] | None:
    """``after − before`` on the tasks of which both have the measure."""
    of = "outcomes" if measure == "accuracy" else "rewards"
    first, second = before.get(of, {}), after.get(of, {})
    both = [task for task in first if task in second]
    if not both:
        return None
    if measure == "accuracy" and all(isinstance(side[task], bool) for task in both for side in (first, second)):
        return paired_difference([first[task] for task in both], [second[task] for task in both])
    gained = [second[task] - first[task] for task in both]
    shares = all(0 <= side[task] <= 1 for task in both for side in (first, second))
    return sum(gained) / len(gained), mean_interval(gained, (-1.0, 1.0) if shares else (-math.inf, math.inf))


def passes_cells(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """pass@k, pass^k, avg@k of evaluations with several attempts at a task: checkpoint, mode, name, share, interval."""
    return [
        (e["checkpoint"], in_words(e), k, percent(share), between(ends, percent))
        for e in evaluations
        for k, (share, ends) in e.get("passes", {}).items()
    ]


def in_words(evaluation: Mapping[str, Any]) -> str:
    """How an evaluation was played: ``greedy shuffled as tree``."""
    team = evaluation.get("reorganized", {}).get("name", "")
    said = f"{evaluation['mode']}{' shuffled' if evaluation['shuffled_messages'] else ''}"
    return said + (f" as {team}" if team else "")


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def points(value: float | None) -> str:
    """A difference of proportions, in points."""
    return "" if value is None else f"{100 * value:+.1f}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def between(interval: tuple[float, float] | None, form: Callable[[float | None], str]) -> str:
    return "" if interval is None else f"{form(interval[0])} to {form(interval[1])}"
