"""Training curves as pictures, one a metric, with a line for each agent or term."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from marft.evaluation.pages import plain_labels
from marft.metrics import Metric, everything, find, named

FIRST = (
    "accuracy", "reward", "validation_accuracy", "validation_reward", "rewards/*", "own_reward", "policy_loss",
    "critic/loss", "kl", "entropy", "action_length", "episodes_per_second",
)  # fmt: skip
INCHES = (4.4, 2.5)
Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A picture of one metric over the steps, and what it says."""

    label: str
    meaning: str
    picture: Markup


def first_curves(rows: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The curves that a reader looks at first, as far as ``metrics.jsonl`` has them."""
    return _curves(rows, map(named, FIRST))


def other_curves(rows: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """All other metrics that changed, those of users' own parts last."""
    found = _curves(rows, (metric for metric in everything() if metric.name not in FIRST), changing=True)
    unknown = dict.fromkeys(name for row in rows for name in row if name != "step" and find(name) is None)
    own = {name: _points(rows, name) for name in unknown}
    return found + [Curve(name, "", _draw({name: points})) for name, points in own.items() if _changes(points)]


def _curves(rows: Sequence[Mapping[str, Any]], metrics: Iterable[Metric], changing: bool = False) -> list[Curve]:
    curves = []
    for metric in metrics:
        lines = _lines(rows, metric)
        if any(map(_changes, lines.values())) if changing else lines:
            unit = f", {metric.unit}" if metric.unit else ""
            curves.append(Curve(metric.label, f"{metric.meaning}{unit}", _draw(lines)))
    return curves


@plain_labels()
def _draw(lines: Mapping[str, Points]) -> Markup:
    """One picture as SVG. A point without neighbours is a dot: a line would not show it."""
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.add_subplot()
    for label, points in lines.items():
        axes.plot(
            *zip(*points, strict=True), label=label, linewidth=1.6, marker="o" if len(points) == 1 else "", markersize=5
        )
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return Markup(buffer.getvalue()[buffer.getvalue().index("<svg") :])  # our own picture


def _lines(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Points]:
    """The points of a metric's curves, by agent or term; those of agents stand for the team's."""
    team: dict[str, Points] = {}
    agents: dict[str, Points] = {}
    for name in dict.fromkeys(name for row in rows for name in row if name != "step" and find(name) is metric):
        if points := _points(rows, name):
            (agents if name.startswith("agents/") else team)[_label(name, metric)] = points
    lines = agents if agents and metric.name != "rewards/*" else {**team, **agents}
    if metric.unless_zero and not any(y for points in lines.values() for _, y in points):
        return {}
    return lines


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> Points:
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def _changes(points: Points) -> bool:
    return len({y for _, y in points}) > 1


def _label(name: str, metric: Metric) -> str:
    """Whose line it is: ``actor``, the term ``format``, or ``actor, format``."""
    first, _, rest = name.partition("/")
    role = rest.partition("/")[0] if first in ("agents", "policies") else ""
    term = name.rpartition("/")[2] if metric.name.endswith("*") else ""
    return ", ".join(part for part in (role, term) if part) or "team"
