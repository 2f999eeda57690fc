"""Gates: limits on metrics, or on their changes between two evaluations on the same tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.common.metrics import find
from marft.evaluation.cohorts import cohorts_of, named_cohorts
from marft.evaluation.intervals import Z95_ONE_SIDED, bounds_of_gain
from marft.evaluation.paired import Difference, paired
from marft.evaluation.shares import clustered
from marft.evaluation.trajectories.ratio import Ratio

GATE = re.compile(
    r"\s*+(?P<metric>[^\s\[<>]++)\s*+(?:\[(?P<field>[^=\]]+)=(?P<value>[^\]]*)\])?\s*+(?P<after>\bafter\b)?\s*+(?P<bound>\bbound\b)?\s*+"
    r"(?P<sign>[<>])\s*+(?P<limit>[-+]?\d+(?:\.\d+)?)\s*(?P<percent>%?)\s*"
)
EVERY = "*"
MOST_LOST = 0.1  # share of previously scored tasks that may be unscored after

Form = Callable[[float], str]
Measured = Mapping[str, Mapping[str, Ratio]]  # by metric, then by task


@dataclass(frozen=True, slots=True)
class Gate:
    """Limit on a metric or on its change; the gate fails beyond the limit.

    - ``accuracy < -1%`` fails if the accuracy fell by more than one point.
    - ``accuracy after < 80%`` fails if the accuracy after is below 80 %.
    - ``accuracy bound < -1%`` fails if a fall by more than one point cannot be excluded, by a one-sided 95 % bound.
    - ``accuracy[level=hard] < -2%`` fails if the accuracy fell by more than two points on tasks with ``level = hard``;
      ``[level=*]`` checks each level.

    >>> Gate.read("agents.coder.tool_error_rate > +2%")
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
    def read(cls, text: str, names: Collection[str] = ()) -> Gate:
        """Parse a gate from its text.

        Args:
            names: known metric names, needed for roles that contain dots. Without them, every dot is a separator.

        Raises:
            ValueError: the text is not a valid gate.
        """
        found = GATE.fullmatch(text)
        if found is None:
            raise ValueError(
                f"gate {text!r}: write a metric, < or >, and a change, such as 'accuracy < -1%'; or what it may not be "
                "after: 'accuracy after < 80%'; of some tasks: 'accuracy[level=3] < -2%'"
            )
        written = found["metric"]
        name = next((name for name in names if name.replace("/", ".") == written), written.replace(".", "/"))
        metric = find(name)
        if metric is None:
            raise ValueError(f"gate {text!r}: there is no metric {written!r}; docs/metrics.md lists them")
        percent, after = bool(found["percent"]), bool(found["after"])
        if found["field"] is not None and not found["field"].strip():
            raise ValueError(f"gate {text!r}: it names no field of tasks, as in 'accuracy[level=3] < -2%'")
        if not math.isfinite(float(found["limit"])):
            raise ValueError(f"gate {written!r}: no number is as large as its limit")
        if percent and after and metric.unit:
            raise ValueError(f"gate {text!r}: {written} is in {metric.unit}, and no share; leave out the %")
        if found["bound"] and metric.unit:
            raise ValueError(f"gate {text!r}: {written} is in {metric.unit}; a bound is of shares: leave out 'bound'")
        limit = float(found["limit"]) / (100 if percent else 1)
        relative = percent and bool(metric.unit)
        field, value = (found["field"] or "").strip(), (found["value"] or "").strip()
        return cls(
            text.strip(), name, found["sign"] == "<", limit, relative, after, field, value, bool(found["bound"])
        )  # fmt: skip

    def cohorts(self, fields: Mapping[str, Mapping[str, str]]) -> Mapping[str, set[str] | None]:
        """Return the gate's tasks by cohort name. None stands for all tasks.

        Raises:
            ValueError: the tasks have no such field, or no task has the value.
        """
        if not self.field:
            return {"": None}
        cohorts = cohorts_of(fields, self.field)
        if self.value != EVERY and self.value not in cohorts:
            raise ValueError(
                f"gate {self.text!r}: no task has {self.field} = {self.value!r}; values: {', '.join(cohorts)}, or "
                f"{EVERY} for each of them"
            )
        named = zip(named_cohorts(fields, self.field).items(), cohorts, strict=True)
        return {name: tasks for (name, tasks), value in named if self.value in (value, EVERY)}

    def fails(self, found: Difference, bound: float | None = None) -> bool:
        """Return True if the gate fails; a non-finite value fails too.

        Args:
            bound: one-sided bound of the checked value, for gates with ``bound``.
        """
        value = bound if bound is not None else found.after if self.after else found.gain
        limit = self.limit * abs(found.before) if self.relative else self.limit
        return not math.isfinite(value) or (value < limit if self.below else value > limit)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a gate, with a reason."""

    gate: Gate
    failed: bool
    reason: str


def judged(gates: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Verdict]:
    """Check each gate against two saved evaluations.

    A gate fails if either evaluation lacks its metric. All gates fail if more than a tenth of the previously scored
    tasks are no longer scored, because the remaining tasks would be a biased selection. A gate with the value ``*`` has
    one verdict for each value of its field.

    Raises:
        ValueError: a gate is invalid, or no task is in its cohort.
    """
    one, two = by_metric(before), by_metric(after)
    scored, lost = before.get("rewards", {}), len(before.get("rewards", {}).keys() - after.get("rewards", {}).keys())
    if lost > MOST_LOST * len(scored):
        reason = f"{lost} of {len(scored)} tasks that were scored before could not be scored after; see why they failed"
        return [Verdict(Gate.read(text, one.keys() | two.keys()), True, reason) for text in gates]
    read = [Gate.read(text, one.keys() | two.keys()) for text in gates]
    return [
        _judge(gate, one, two, cohort, tasks)
        for gate in read
        for cohort, tasks in gate.cohorts(after.get("fields", {})).items()
    ]


def by_metric(evaluation: Mapping[str, Any]) -> dict[str, dict[str, Ratio]]:
    """Return the measurements of a saved evaluation, by metric and then by task."""
    found: dict[str, dict[str, Ratio]] = {}
    for task, measured in evaluation.get("measured", {}).items():
        for name, pair in measured.items():
            found.setdefault(name, {})[task] = Ratio(*pair)
    return found


def shown(name: str) -> tuple[Form, Form]:
    """Return the formats for a metric and for its change.

    Shares are written in percent and points. All other metrics, including those of other versions, are written as
    numbers.
    """
    metric = find(name)
    if metric is None or metric.unit or name == "reward":
        return "{:.4g}".format, "{:+.4g}".format
    return "{:.1%}".format, lambda number: f"{100 * number:+.1f} points"


def _judge(gate: Gate, before: Measured, after: Measured, cohort: str, tasks: set[str] | None) -> Verdict:
    one, two = (
        {task: ratio for task, ratio in side.get(gate.metric, {}).items() if tasks is None or task in tasks}
        for side in (before, after)
    )
    found, where = paired(one, two), f" where {cohort}" if cohort else ""
    if found is None:
        return Verdict(gate, True, f"{gate.metric} was not measured on the same tasks before and after{where}")
    bound = _bound(gate, one, two) if gate.bound else None
    return Verdict(gate, gate.fails(found, bound), _reason(gate, found, where, bound))


def _bound(gate: Gate, before: Mapping[str, Ratio], after: Mapping[str, Ratio]) -> float:
    """Return the 95 % bound on the side of the gate's limit, over the tasks that both sides have.

    Raises:
        ValueError: the metric is not a share from 0 to 1.
    """
    tasks = [task for task in before.keys() & after.keys() if before[task].out_of and after[task].out_of]
    shares = [(before[task].amount / before[task].out_of, after[task].amount / after[task].out_of) for task in tasks]
    if any(not 0 <= share <= 1 for pair in shares for share in pair):
        raise ValueError(
            f"gate {gate.text!r}: {gate.metric} is no share from 0 to 1, which a bound is of; leave it out"
        )
    if gate.after:
        attempts = max((math.ceil(after[task].out_of) for task in tasks), default=1)
        found = clustered([after[task] for task in tasks], attempts, Z95_ONE_SIDED)
        interval = found[1] if found else (0.0, 1.0)
    else:
        interval = bounds_of_gain([two - one for one, two in shares])
    return interval[0] if gate.below else interval[1]


def _reason(gate: Gate, found: Difference, where: str, bound: float | None) -> str:
    value, change = shown(gate.metric)
    interval = f", 95 % {change(found.interval[0])} to {change(found.interval[1])}" if found.interval else ""
    side = "at least" if gate.below else "at most"
    sure = "" if bound is None else f"; {side} {(value if gate.after else change)(bound)}, one-sided 95 %"
    return (
        f"{gate.metric} went from {value(found.before)} to {value(found.after)} on {found.tasks} tasks{where} "
        f"({change(found.gain)}{interval}{sure})"
    )
