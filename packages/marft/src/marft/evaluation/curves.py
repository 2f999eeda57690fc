"""Training curves as SVG, one plot for each metric with a line for each agent or reward term."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.colors import hsv_to_rgb, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from marft.common.metrics import Metric, everything, find, named
from marft.common.texts import one_line
from marft.evaluation.pages import plain_labels, svg

FIRST = (
    "accuracy", "reward", "validation_accuracy", "validation_reward", "rewards/*", "own_reward", "policy_loss",
    "critic/loss", "kl", "entropy", "action_length", "episodes_per_second",
)  # fmt: skip
BESIDE = ("accuracy", "reward", "validation_accuracy", "validation_reward", "kl", "entropy", "action_length")
INCHES = (4.4, 2.5)
# number of lines that fit with an inner legend; for a legend below: columns, inches a row, characters a name
CROWDED, COLUMNS, ROW, NAME = 6, 3, 0.17, 24
FIRST_COLOURS = tuple(to_hex(f"C{number}") for number in range(10))
DASHES = ("-", "--", ":", "-.")
Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """Plot of one metric over the steps, with its label and meaning."""

    label: str
    meaning: str
    picture: Markup


def first_curves(rows: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the most important curves with data in ``metrics.jsonl``."""
    return _curves(rows, map(named, FIRST))


def other_curves(rows: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return curves for the remaining metrics if they changed. Metrics of user-defined parts come last."""
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
    """Draw one plot as SVG.

    A line with a single point is drawn as a dot. The legend is below the plot if it has more than ``CROWDED`` lines.
    """
    crowded = len(lines) > CROWDED
    columns = min(COLUMNS, len(lines))
    rows = math.ceil(len(lines) / columns) if crowded else 0
    figure = Figure(figsize=(INCHES[0], INCHES[1] + ROW * rows), layout="constrained")
    axes = figure.add_subplot()
    for number, (label, points) in enumerate(lines.items()):
        colour, style = line_style(number)
        axes.plot(
            *zip(*points, strict=True), label=cut_name(label), linewidth=1.1 if crowded else 1.6, color=colour,
            linestyle=style, marker="o" if len(points) == 1 else "", markersize=5,
        )  # fmt: skip
    if crowded:
        figure.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize=7, handlelength=2.5)
    elif len(lines) > 1:
        axes.legend(frameon=False, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return svg(figure)


def line_style(number: int) -> tuple[str, str]:
    """Return a unique color and dash style for a line.

    After ten lines, hues advance by the golden angle, and dashes change every ten lines.

    >>> line_style(0), line_style(9), line_style(12)
    (('#1f77b4', '-'), ('#17becf', '-'), ('#2ba668', '--'))
    """
    if number < len(FIRST_COLOURS):
        return FIRST_COLOURS[number], "-"
    hue = number * 0.618033988749895 % 1.0
    return to_hex(tuple(hsv_to_rgb((hue, 0.74, 0.65)))), DASHES[number // len(FIRST_COLOURS) % len(DASHES)]


def cut_name(label: str) -> str:
    """Shorten a name to fit into a legend, keeping its beginning and end.

    >>> cut_name("chain-sum-of-three-numbers-seed-1")
    'chain-sum-o…umbers-seed-1'
    """
    label = one_line(label)
    return label if len(label) <= NAME else f"{label[: NAME // 2 - 1]}…{label[-NAME // 2 - 1 :]}"


def curves_beside(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Curve]:
    """Return the most important team curves, with a line for each run.

    Args:
        runs: log rows by run name.
    """
    curves = []
    for metric in map(named, BESIDE):
        lines = {name: points for name, rows in runs.items() if (points := _points(rows, metric.name))}
        if lines:
            unit = f", {metric.unit}" if metric.unit else ""
            curves.append(Curve(metric.label, f"{metric.meaning}{unit}", _draw(lines)))
    return curves


def _lines(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Points]:
    """Return the points of a metric's curves, by agent or reward term.

    Curves of agents replace those of the team, except for reward terms.
    """
    team: dict[str, Points] = {}
    agents: dict[str, Points] = {}
    for name in dict.fromkeys(name for row in rows for name in row if find(name) is metric):
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
    """Return the label of a line: ``actor``, the term ``format``, or ``actor, format``."""
    first, _, rest = name.partition("/")
    role = rest.partition("/")[0] if first in ("agents", "policies") else ""
    term = name.rpartition("/")[2] if metric.name.endswith("*") else ""
    return ", ".join(part for part in (role, term) if part) or "team"
