"""Gates: what may not become worse between two evaluations of the same tasks, and what may not be bad after."""

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
MOST_LOST = 0.1  # of the tasks that were scored before, those that may not be after

Form = Callable[[float], str]
Measured = Mapping[str, Mapping[str, Ratio]]  # by metric, then by task


@dataclass(frozen=True, slots=True)
class Gate:
    """``accuracy < -1%`` fails where accuracy fell by over a point; ``accuracy after < 80%`` where it is below that
    after; ``accuracy bound < -1%`` where it may have fallen by over a point, by a one-sided bound of 95 %;
    ``accuracy[level=hard] < -2%`` where it fell by over two points on those tasks, ``[level=*]`` on those of any
    level.

    >>> Gate.read("agents.coder.tool_error_rate > +2%")
    Gate(text='agents.coder.tool_error_rate > +2%', metric='agents/coder/tool_error_rate', below=False, limit=0.02, \
relative=False, after=False, field='', value='', bound=False)

    Args:
        metric: as ``metrics.jsonl`` names it.
        below: fails where what was gained is less than the limit; else where it is more.
        relative: the limit is a share of what the metric was before: percent of what has a unit.
        after: the limit is of what the metric is after, not of what was gained.
        bound: the limit is held against a bound of that, of 95 %: the gate holds where it is sure to.
        field: of tasks; of those whose value is this one, or each of its values for ``*``. "" is of all tasks.
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
        """A gate in words.

        Args:
            names: of metrics, among which a role may hold dots; without them every dot divides.

        Raises:
            ValueError: it is none.
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
        """Return the tasks that the gate judges, by the name of their cohort; None stands for all tasks.

        Raises:
            ValueError: tasks have no such field, or none has that value.
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
        """Return whether the gate fails; a missing number fails it too.

        Args:
            bound: of what its limit is of, where it asks for one.
        """
        value = bound if bound is not None else found.after if self.after else found.gain
        limit = self.limit * abs(found.before) if self.relative else self.limit
        return not math.isfinite(value) or (value < limit if self.below else value > limit)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a gate holds, and why."""

    gate: Gate
    failed: bool
    reason: str


def judged(gates: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Verdict]:
    """Each gate over two evaluations, as they were saved. A gate whose metric either of them lacks fails: nobody can
    say that it holds. So does each where more than a tenth of the tasks that were scored before are not any more: what
    is left would be a selection. One of each value of a field is a verdict for each.

    Raises:
        ValueError: a gate cannot be read, or no task is of its cohort.
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
    """What an evaluation measured, by metric and then by task."""
    found: dict[str, dict[str, Ratio]] = {}
    for task, measured in evaluation.get("measured", {}).items():
        for name, pair in measured.items():
            found.setdefault(name, {})[task] = Ratio(*pair)
    return found


def shown(name: str) -> tuple[Form, Form]:
    """How a metric and a change of it are written: shares in percent and points, everything else as numbers, also what
    another version has measured."""
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
    """The bound of 95 % on the side of the gate's limit, of the tasks that both sides have.

    Raises:
        ValueError: the metric is no share from 0 to 1.
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
