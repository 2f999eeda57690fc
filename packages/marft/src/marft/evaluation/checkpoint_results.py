"""Run comparison: each evaluated checkpoint against its base on the same tasks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from marft.common.errors import UserError
from marft.evaluation.column_tables import ColumnTable, short_names
from marft.evaluation.intervals import mean_interval, paired_difference
from marft.evaluation.tool_definitions import check_tools
from marft.runs.run_folder import RunFolder

# labels of the figures from format_cells, in a table with a column per result
FIGURES = (
    "{measure} of base",
    "{measure}",
    "  95 % interval",
    "  gain",
    "  95 % interval",
    "  shuffling costs",
)


@dataclass(frozen=True, slots=True)
class MetricResult:
    """Result for one measure of a checkpoint, with the gain over the base.

    The gain is computed on the tasks for which both evaluations have the measure. Intervals are 95 % confidence
    intervals.
    """

    base: float | None
    value: float
    interval: tuple[float, float] | None
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    shuffle_cost: float | None = None  # drop of the measure when agents see messages of other tasks


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """Result for an evaluated checkpoint in one mode.

    ``accuracy`` is None if the environment never reports success. ``unknown`` is the number of tasks without a known
    success.
    """

    run: str
    checkpoint: str
    mode: str
    tasks: int
    unknown: int
    accuracy: MetricResult | None
    reward: MetricResult | None

    def get_measure(self, measure: str) -> MetricResult | None:
        """Return the result for ``accuracy`` or ``reward``."""
        return self.accuracy if measure == "accuracy" else self.reward


def compare_runs(folders: Sequence[RunFolder]) -> list[CheckpointResult]:
    """Return the results of several runs.

    A run whose base was not evaluated is compared with the base of the first run, task by task, unless its tasks are
    different ones.
    """
    names = short_names([str(folder.path) for folder in folders])
    runs = [(name, folder.read_evaluations()) for name, folder in zip(names, folders, strict=True)]
    first_base = [e for e in runs[0][1] if e["checkpoint"] == "base"]
    rows = []
    for name, evaluations in runs:
        has_base = any(e["checkpoint"] == "base" for e in evaluations)
        base = [] if has_base else [e for e in first_base if all(has_same_tasks(e, other) for other in evaluations)]
        rows += compare_checkpoints(name, [*base, *evaluations])
    return rows


def has_same_tasks(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two evaluations have tasks in common, and tasks with the same ID are the same by their digests.

    Evaluations without digests are taken to have the same tasks.
    """
    digests, others = first.get("prompts", {}), second.get("prompts", {})
    common = digests.keys() & others.keys()
    return (bool(common) or not digests or not others) and all(digests[task] == others[task] for task in common)


def compare_checkpoints(name: str, evaluations: Sequence[Mapping[str, Any]]) -> list[CheckpointResult]:
    """Return one result for each evaluated checkpoint of a run, except the base."""
    evaluation_by_key = {(e["checkpoint"], e["mode"]): e for e in evaluations if not e["shuffled_messages"]}
    shuffled = {(e["checkpoint"], e["mode"]): e for e in evaluations if e["shuffled_messages"]}
    rows = []
    for (checkpoint, mode), after in sorted(evaluation_by_key.items()):
        if checkpoint == "base":
            continue
        before, shuffled_run = evaluation_by_key.get(("base", mode)), shuffled.get((checkpoint, mode))
        rows.append(
            CheckpointResult(
                run=name,
                checkpoint=checkpoint,
                mode=mode,
                tasks=after["tasks"],
                unknown=after.get("unknown", 0),
                accuracy=_compute_result(before, after, shuffled_run, "accuracy"),
                reward=_compute_result(before, after, shuffled_run, "reward"),
            )
        )
    return rows


def describe_unevaluated(folders: Sequence[RunFolder]) -> list[str]:
    """Return a message for each run without an evaluated checkpoint, with the command to evaluate it."""
    paths = [folder.path for folder in folders if not _is_evaluated(folder)]
    return [f"{path} has no evaluated checkpoint; run:  marft eval {path}" for path in paths]


def _is_evaluated(folder: RunFolder) -> bool:
    return bool(compare_checkpoints(folder.path.name, folder.read_evaluations()))


def list_measures(rows: Sequence[CheckpointResult]) -> list[str]:
    """Return the measures with results: accuracy first, then reward."""
    return [measure for measure in ("accuracy", "reward") if any(row.get_measure(measure) for row in rows)]


def build_comparison_table(folders: Sequence[RunFolder], other_tools: bool = False) -> ColumnTable:
    """Return a terminal table with a column for each evaluated checkpoint and mode.

    Args:
        other_tools: allow evaluations with different tool definitions.

    Raises:
        UserError: a run has no evaluated checkpoint, or its tool definitions differ from those of the first run.
    """
    missing = [str(folder.path) for folder in folders if not _is_evaluated(folder)]
    if missing:
        problem = "have no evaluated checkpoint" if len(missing) > 1 else "has no evaluated checkpoint"
        raise UserError(f"{' and '.join(missing)} {problem}; run:  marft eval {' '.join(map(shlex.quote, missing))}")
    if not other_tools:
        _check_same_tools(folders)
    return _build_table(compare_runs(folders))


def _check_same_tools(folders: Sequence[RunFolder]) -> None:
    """Check the tool definitions behind the results of a comparison.

    Raises:
        UserError: two evaluations used different tool definitions.
    """
    with_tools = [
        (f"{folder.path} ({evaluation['checkpoint']})", evaluation)
        for folder in folders
        for evaluation in folder.read_evaluations()
        if evaluation.get("tools") is not None
    ]
    for name, evaluation in with_tools[1:]:
        check_tools(with_tools[0][1], evaluation, (with_tools[0][0], name))


def _build_table(rows: Sequence[CheckpointResult]) -> ColumnTable:
    """Return a table with a column per result, those of a mode side by side, and the figures of each measure below."""
    modes = list(dict.fromkeys(row.mode for row in rows))
    columns = sorted(rows, key=lambda row: modes.index(row.mode))
    lines: list[tuple[Text, Sequence[str]]] = [(Text("tasks"), [str(row.tasks) for row in columns])]
    if any(row.accuracy and row.unknown for row in columns):
        lines.append((Text("success unknown"), [str(row.unknown) for row in columns]))
    for measure in list_measures(rows):
        results = [row.get_measure(measure) for row in columns]
        cells = [format_cells(result, measure) if result else ("",) * len(FIGURES) for result in results]
        for label, figures in zip(FIGURES, zip(*cells, strict=True), strict=True):
            if any(figures):
                lines.append((Text(label.format(measure=measure)), figures))
    headings = [[row.run, row.checkpoint, row.mode] for row in columns]
    return ColumnTable("", headings, lines)


def format_cells(result: MetricResult, measure: str) -> tuple[str, ...]:
    """Return the cells for the base, the value and its interval, the gain and its interval, and the shuffling cost."""
    value, difference = (format_percent, format_points) if measure == "accuracy" else (format_number, format_signed)
    return (
        value(result.base),
        value(result.value),
        format_interval(result.interval, value),
        difference(result.gain),
        format_interval(result.gain_interval, difference),
        difference(result.shuffle_cost),
    )


def _compute_result(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], shuffled: Mapping[str, Any] | None, measure: str
) -> MetricResult | None:
    """Return the result for a single measure.

    The result is None without this measure. Fields that earlier versions did not save are left out.
    """
    if after.get(measure) is None:
        return None
    interval = after.get("interval" if measure == "accuracy" else "reward_interval")
    gain = paired_gain(before, after, measure) if before else None
    cost = paired_gain(after, shuffled, measure) if shuffled else None
    return MetricResult(
        base=before.get(measure) if before else None,
        value=after[measure],
        interval=tuple(interval) if interval else None,
        gain=gain[0] if gain else None,
        gain_interval=gain[1] if gain else None,
        shuffle_cost=-cost[0] if cost else None,
    )


def paired_gain(
    before: Mapping[str, Any], after: Mapping[str, Any], measure: str
) -> tuple[float, tuple[float, float] | None] | None:
    """Return the mean ``after − before`` and its interval, over tasks with the measure in both evaluations."""
    key = "outcomes" if measure == "accuracy" else "rewards"
    first, second = before.get(key, {}), after.get(key, {})
    both = [task for task in first if task in second]
    if not both:
        return None
    if measure == "accuracy" and all(isinstance(side[task], bool) for task in both for side in (first, second)):
        return paired_difference([first[task] for task in both], [second[task] for task in both])
    gained = [second[task] - first[task] for task in both]
    shares = all(0 <= side[task] <= 1 for task in both for side in (first, second))
    return sum(gained) / len(gained), mean_interval(gained, (-1.0, 1.0) if shares else (-math.inf, math.inf))


def format_passes(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return table cells for pass@k, pass^k and avg@k of evaluations with several attempts at a task.

    Each row has the checkpoint, the mode, the metric name, the value and its interval.
    """
    return [
        (e["checkpoint"], describe_conditions(e), k, format_percent(share), format_interval(interval, format_percent))
        for e in evaluations
        for k, (share, interval) in e.get("passes", {}).items()
    ]


def describe_conditions(evaluation: Mapping[str, Any]) -> str:
    """Describe an evaluation's conditions, for example ``greedy shuffled as tree``."""
    team = evaluation.get("reorganized", {}).get("name", "")
    text = f"{evaluation['mode']}{' shuffled' if evaluation['shuffled_messages'] else ''}"
    return text + (f" as {team}" if team else "")


def format_percent(value: float | None) -> str:
    """Format a share in percent; "" if None."""
    return "" if value is None else f"{value:.1%}"


def format_points(value: float | None) -> str:
    """Format a difference between shares, in percentage points. The text is "" for None."""
    return "" if value is None else f"{100 * value:+.1f}"


def format_number(value: float | None) -> str:
    """Format a number with three decimals; "" if None."""
    return "" if value is None else f"{value:.3f}"


def format_signed(value: float | None) -> str:
    """Format a difference with its sign and three decimals; "" if None."""
    return "" if value is None else f"{value:+.3f}"


def format_interval(interval: tuple[float, float] | None, formatter: Callable[[float | None], str]) -> str:
    """Format both ends with ``formatter``, for example ``0.1 to 0.3``. The text is "" for None."""
    return "" if interval is None else f"{formatter(interval[0])} to {formatter(interval[1])}"
