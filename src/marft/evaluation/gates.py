"""Gates: what may not become worse between two evaluations of the same tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.evaluation.bootstrap import Difference, paired
from marft.evaluation.trajectories.ratio import Ratio
from marft.metrics import find, known

GATE = re.compile(r"\s*(?P<metric>\S+)\s*(?P<sign>[<>])\s*(?P<limit>[-+]?\d+(?:\.\d+)?)\s*(?P<percent>%?)\s*")

Form = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Gate:
    """``accuracy < -1%`` fails where accuracy fell by over a point.

    >>> Gate.read("agents.coder.tool_error_rate > +2%")
    Gate(text='agents.coder.tool_error_rate > +2%', metric='agents/coder/tool_error_rate', below=False, limit=0.02, \
relative=False)

    Args:
        metric: as ``metrics.jsonl`` names it.
        below: fails where what was gained is less than the limit; else where it is more.
        relative: the limit is a share of what the metric was before: percent of what has a unit.
    """

    text: str
    metric: str
    below: bool
    limit: float
    relative: bool

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
            raise ValueError(f"gate {text!r}: write a metric, < or >, and a change, such as 'accuracy < -1%'")
        written = found["metric"]
        name = next((name for name in names if name.replace("/", ".") == written), written.replace(".", "/"))
        metric = find(name)
        if metric is None:
            raise ValueError(f"gate {text!r}: there is no metric {written!r}; docs/metrics.md lists them")
        percent = bool(found["percent"])
        limit = float(found["limit"]) / (100 if percent else 1)
        return cls(text.strip(), name, found["sign"] == "<", limit, percent and bool(metric.unit))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a gate holds, and why."""

    gate: Gate
    failed: bool
    reason: str


def judged(gates: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Verdict]:
    """Each gate over two evaluations, as they were saved. A gate whose metric either of them lacks fails: nobody can
    say that it holds.

    Raises:
        ValueError: a gate cannot be read.
    """
    one, two = by_metric(before), by_metric(after)
    return [_judge(gate, one, two) for gate in (Gate.read(text, one.keys() | two.keys()) for text in gates)]


def by_metric(evaluation: Mapping[str, Any]) -> dict[str, dict[str, Ratio]]:
    """What an evaluation measured, by metric and then by task."""
    found: dict[str, dict[str, Ratio]] = {}
    for task, measured in evaluation.get("measured", {}).items():
        for name, pair in measured.items():
            found.setdefault(name, {})[task] = Ratio(*pair)
    return found


def shown(name: str) -> tuple[Form, Form]:
    """How a metric and a change of it are written: shares in percent and points, everything else as numbers."""
    if known(name).unit or name == "reward":
        return "{:.4g}".format, "{:+.4g}".format
    return "{:.1%}".format, lambda number: f"{100 * number:+.1f} points"


def _judge(gate: Gate, before: Mapping[str, Mapping[str, Ratio]], after: Mapping[str, Mapping[str, Ratio]]) -> Verdict:
    found = paired(before.get(gate.metric, {}), after.get(gate.metric, {}))
    if found is None:
        return Verdict(gate, True, f"{gate.metric} was not measured on the same tasks before and after")
    limit = gate.limit * abs(found.before) if gate.relative else gate.limit
    failed = found.gain < limit if gate.below else found.gain > limit
    return Verdict(gate, failed, _reason(gate, found))


def _reason(gate: Gate, found: Difference) -> str:
    value, change = shown(gate.metric)
    interval = f", 95 % {change(found.interval[0])} to {change(found.interval[1])}" if found.interval else ""
    return (
        f"{gate.metric} went from {value(found.before)} to {value(found.after)} on {found.tasks} tasks "
        f"({change(found.gain)}{interval})"
    )
