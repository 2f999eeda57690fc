"""Gates: limits on metrics, or on their changes between two evaluations on the same tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.common.errors import UserError
from marft.common.metrics import find_metric
from marft.evaluation.cohorts import group_tasks_by_field
from marft.evaluation.intervals import Z95_ONE_SIDED, gain_bounds
from marft.evaluation.ratios import PairedDifference, Ratio, clustered_interval, compare_ratios

GATE_PATTERN = re.compile(
    r"\s*+(?P<metric>[^\s\[<>]++)\s*+(?:\[(?P<field>[^=\]]+)=(?P<value>[^\]]*)\])?\s*+(?P<after>\bafter\b)?\s*+(?P<bound>\bbound\b)?\s*+"
    r"(?P<sign>[<>])\s*+(?P<limit>[-+]?\d+(?:\.\d+)?)\s*(?P<percent>%?)\s*"
)
ALL_VALUES = "*"
MAX_UNSCORED_SHARE = 0.1  # share of previously scored tasks that may be unscored after

Formatter = Callable[[float], str]
MetricRatios = Mapping[str, Mapping[str, Ratio]]  # by metric, then by task


@dataclass(frozen=True, slots=True)
class Gate:
    """Limit on a metric or on its change; the gate fails beyond the limit.

    - ``accuracy < -1%`` fails if the accuracy fell by more than one point.
    - ``accuracy after < 80%`` fails if the accuracy after is below 80 %.
    - ``accuracy bound < -1%`` fails if a fall by more than one point cannot be excluded, by a one-sided 95 % bound.
    - ``accuracy[level=hard] < -2%`` fails if the accuracy fell by more than two points on tasks with ``level = hard``;
      ``[level=*]`` checks each level.

    >>> Gate.parse("agents.coder.tool_error_rate > +2%")
    Gate(text='agents.coder.tool_error_rate > +2%', metric='agents/coder/tool_error_rate', below=False, limit=0.02, \
relative=False, after=False, field='', value='', bound=False)

    Args:
        metric: name as in ``metrics.jsonl``.
        below: True fails if the value is less than the limit; False fails if it is greater.
        relative: the limit is a fraction of the metric before; used for percentages of metrics with a unit.
        after: the limit applies to the metric after instead of its change.
        bound: the limit applies to a one-sided 95 % bound, so the gate holds only if the evidence is sufficient.
        field: data field that selects tasks; "" selects all tasks.
        value: value of ``field`` that selects tasks; ``*`` checks each value.
    """

    text: str
    metric: str
    below: bool
    limit: float
    relative: bool
    after: bool
    field: str
    value: str
    bound: bool

    @classmethod
    def parse(cls, text: str, names: Collection[str] = ()) -> Gate:
        """Parse a gate from its text.

        Args:
            names: known metric names, needed for roles that contain dots. Without them, every dot is a separator.

        Raises:
            UserError: the text is not a valid gate.
        """
        match = GATE_PATTERN.fullmatch(text)
        if match is None:
            raise UserError(
                f"gate {text!r}: write a metric, < or >, and a change, such as 'accuracy < -1%'; or what it may not be "
                "after: 'accuracy after < 80%'; of some tasks: 'accuracy[level=3] < -2%'"
            )
        metric_text = match["metric"]
        name = next((name for name in names if name.replace("/", ".") == metric_text), metric_text.replace(".", "/"))
        metric = find_metric(name)
        if metric is None:
            raise UserError(f"gate {text!r}: there is no metric {metric_text!r}; docs/metrics.md lists them")
        percent, after = bool(match["percent"]), bool(match["after"])
        if match["field"] is not None and not match["field"].strip():
            raise UserError(f"gate {text!r}: it names no field of tasks, as in 'accuracy[level=3] < -2%'")
        if not math.isfinite(float(match["limit"])):
            raise UserError(f"gate {metric_text!r}: no number is as large as its limit")
        if percent and after and metric.unit:
            raise UserError(f"gate {text!r}: {metric_text} is in {metric.unit}, and no share; leave out the %")
        if match["bound"] and metric.unit:
            raise UserError(
                f"gate {text!r}: {metric_text} is in {metric.unit}; a bound is of shares: leave out 'bound'"
            )
        limit = float(match["limit"]) / (100 if percent else 1)
        relative = percent and bool(metric.unit)
        field, value = (match["field"] or "").strip(), (match["value"] or "").strip()
        return cls(text.strip(), name, match["sign"] == "<", limit, relative, after, field, value, bool(match["bound"]))

    def select_cohorts(self, fields: Mapping[str, Mapping[str, str]]) -> Mapping[str, set[str] | None]:
        """Return the gate's tasks by cohort name. None stands for all tasks.

        Raises:
            UserError: the tasks have no such field, or no task has the value.
        """
        if not self.field:
            return {"": None}
        tasks_by_value = group_tasks_by_field(fields, self.field)
        if self.value != ALL_VALUES and self.value not in tasks_by_value:
            raise UserError(
                f"gate {self.text!r}: no task has {self.field} = {self.value!r}; values: {', '.join(tasks_by_value)}, "
                f"or {ALL_VALUES} for each of them"
            )
        return {
            f"{self.field} = {value}": tasks
            for value, tasks in tasks_by_value.items()
            if self.value in (value, ALL_VALUES)
        }

    def is_violated(self, difference: PairedDifference, bound: float | None = None) -> bool:
        """Return True if the gate fails; a non-finite value fails too.

        Args:
            bound: one-sided bound of the checked value, for gates with ``bound``.
        """
        value = bound if bound is not None else difference.after if self.after else difference.gain
        limit = self.limit * abs(difference.before) if self.relative else self.limit
        return not math.isfinite(value) or (value < limit if self.below else value > limit)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a gate, with a reason."""

    gate: Gate
    failed: bool
    reason: str


def check_gates(gates: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Verdict]:
    """Check each gate against two saved evaluations.

    A gate fails if either evaluation lacks its metric. All gates fail if more than a tenth of the previously scored
    tasks are no longer scored, because the remaining tasks would be a biased selection. A gate with the value ``*`` has
    one verdict for each value of its field.

    Raises:
        UserError: a gate is invalid, or no task is in its cohort.
    """
    before_metrics, after_metrics = group_by_metric(before), group_by_metric(after)
    parsed = [Gate.parse(text, before_metrics.keys() | after_metrics.keys()) for text in gates]
    scored, unscored = before.get("rewards", {}), before.get("rewards", {}).keys() - after.get("rewards", {}).keys()
    if len(unscored) > MAX_UNSCORED_SHARE * len(scored):
        counts = f"{len(unscored)} of {len(scored)} tasks that were scored before could not be scored after"
        return [Verdict(gate, True, f"{counts}; see why they failed") for gate in parsed]
    return [
        _check_gate(gate, before_metrics, after_metrics, cohort, tasks)
        for gate in parsed
        for cohort, tasks in gate.select_cohorts(after.get("fields", {})).items()
    ]


def group_by_metric(evaluation: Mapping[str, Any]) -> dict[str, dict[str, Ratio]]:
    """Return the measurements of a saved evaluation, by metric and then by task."""
    metrics: dict[str, dict[str, Ratio]] = {}
    for task, ratios in evaluation.get("measured", {}).items():
        for name, pair in ratios.items():
            metrics.setdefault(name, {})[task] = Ratio(*pair)
    return metrics


def metric_formatters(name: str) -> tuple[Formatter, Formatter]:
    """Return the formats for a metric and for its change.

    Shares are written in percent and points. All other metrics, including those of other versions, are written as
    numbers.
    """
    metric = find_metric(name)
    if metric is None or metric.unit or name == "reward":
        return "{:.4g}".format, "{:+.4g}".format
    return "{:.1%}".format, lambda number: f"{100 * number:+.1f} points"


def _check_gate(gate: Gate, before: MetricRatios, after: MetricRatios, cohort: str, tasks: set[str] | None) -> Verdict:
    before_ratios, after_ratios = (
        {task: ratio for task, ratio in side.get(gate.metric, {}).items() if tasks is None or task in tasks}
        for side in (before, after)
    )
    difference, cohort_text = compare_ratios(before_ratios, after_ratios), f" where {cohort}" if cohort else ""
    if difference is None:
        return Verdict(gate, True, f"{gate.metric} was not measured on the same tasks before and after{cohort_text}")
    bound = _confidence_bound(gate, before_ratios, after_ratios) if gate.bound else None
    return Verdict(gate, gate.is_violated(difference, bound), _format_reason(gate, difference, cohort_text, bound))


def _confidence_bound(gate: Gate, before: Mapping[str, Ratio], after: Mapping[str, Ratio]) -> float:
    """Return the 95 % bound on the side of the gate's limit, over the tasks that both sides have.

    Raises:
        UserError: the metric is not a share from 0 to 1.
    """
    tasks = [task for task in before.keys() & after.keys() if before[task].denominator and after[task].denominator]
    shares = [
        (before[task].numerator / before[task].denominator, after[task].numerator / after[task].denominator)
        for task in tasks
    ]
    if any(not 0 <= share <= 1 for pair in shares for share in pair):
        raise UserError(f"gate {gate.text!r}: {gate.metric} is no share from 0 to 1, which a bound is of; leave it out")
    if gate.after:
        attempts = max((math.ceil(after[task].denominator) for task in tasks), default=1)
        share_interval = clustered_interval([after[task] for task in tasks], attempts, Z95_ONE_SIDED)
        interval = share_interval[1] if share_interval else (0.0, 1.0)
    else:
        interval = gain_bounds([second - first for first, second in shares])
    return interval[0] if gate.below else interval[1]


def _format_reason(gate: Gate, difference: PairedDifference, cohort_text: str, bound: float | None) -> str:
    value, change = metric_formatters(gate.metric)
    interval = (
        f", 95 % {change(difference.interval[0])} to {change(difference.interval[1])}" if difference.interval else ""
    )
    side = "at least" if gate.below else "at most"
    bound_text = "" if bound is None else f"; {side} {(value if gate.after else change)(bound)}, one-sided 95 %"
    return (
        f"{gate.metric} went from {value(difference.before)} to {value(difference.after)} on {difference.tasks} "
        f"tasks{cohort_text} ({change(difference.gain)}{interval}{bound_text})"
    )
