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

from marft.common.metrics import Metric, all_metrics, catalog_metric, find_metric
from marft.common.texts import single_line
from marft.evaluation.html_pages import disable_math_text, to_svg

MAIN_METRICS = (
    "accuracy",
    "reward",
    "validation_accuracy",
    "validation_reward",
    "rewards/*",
    "own_reward",
    "policy_loss",
    "critic/loss",
    "kl",
    "entropy",
    "action_length",
    "episodes_per_second",
)
COMPARED_METRICS = ("accuracy", "reward", "validation_accuracy", "validation_reward", "kl", "entropy", "action_length")
FIGURE_SIZE = (4.4, 2.5)
# number of lines that fit with an inner legend; for a legend below: columns, inches a row, characters a name
MAX_INNER_LEGEND, LEGEND_COLUMNS, LEGEND_ROW_HEIGHT, MAX_NAME_LENGTH = 6, 3, 0.17, 24
BASE_COLORS = tuple(to_hex(f"C{number}") for number in range(10))
LINE_STYLES = ("-", "--", ":", "-.")
Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """Plot of one metric over the steps, with its label and meaning."""

    label: str
    meaning: str
    image: Markup


def draw_main_curves(rows: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the most important curves with data in ``metrics.jsonl``."""
    return _build_curves(rows, map(catalog_metric, MAIN_METRICS))


def other_curves(rows: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return curves for the remaining metrics if they changed. Metrics of user-defined parts come last."""
    cataloged = _build_curves(
        rows, (metric for metric in all_metrics() if metric.name not in MAIN_METRICS), changing=True
    )
    unknown = dict.fromkeys(name for row in rows for name in row if name != "step" and find_metric(name) is None)
    points_by_name = {name: _extract_points(rows, name) for name in unknown}
    return cataloged + [
        Curve(name, "", _draw({name: points})) for name, points in points_by_name.items() if _has_changes(points)
    ]


def _build_curves(rows: Sequence[Mapping[str, Any]], metrics: Iterable[Metric], changing: bool = False) -> list[Curve]:
    curves = []
    for metric in metrics:
        lines = _metric_lines(rows, metric)
        if any(map(_has_changes, lines.values())) if changing else lines:
            unit = f", {metric.unit}" if metric.unit else ""
            curves.append(Curve(metric.label, f"{metric.description}{unit}", _draw(lines)))
    return curves


@disable_math_text()
def _draw(lines: Mapping[str, Points]) -> Markup:
    """Draw one plot as SVG.

    A line with a single point is drawn as a dot. The legend is below the plot if it has more than ``MAX_INNER_LEGEND``
    lines.
    """
    legend_below = len(lines) > MAX_INNER_LEGEND
    columns = min(LEGEND_COLUMNS, len(lines))
    rows = math.ceil(len(lines) / columns) if legend_below else 0
    figure = Figure(figsize=(FIGURE_SIZE[0], FIGURE_SIZE[1] + LEGEND_ROW_HEIGHT * rows), layout="constrained")
    axes = figure.add_subplot()
    for number, (label, points) in enumerate(lines.items()):
        color, style = line_style(number)
        axes.plot(
            *zip(*points, strict=True),
            label=shorten_name(label),
            linewidth=1.1 if legend_below else 1.6,
            color=color,
            linestyle=style,
            marker="o" if len(points) == 1 else "",
            markersize=5,
        )
    if legend_below:
        figure.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize=7, handlelength=2.5)
    elif len(lines) > 1:
        axes.legend(frameon=False, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return to_svg(figure)


def line_style(number: int) -> tuple[str, str]:
    """Return a unique color and dash style for a line.

    After ten lines, hues advance by the golden angle, and dashes change every ten lines.

    >>> line_style(0), line_style(9), line_style(12)
    (('#1f77b4', '-'), ('#17becf', '-'), ('#2ba668', '--'))
    """
    if number < len(BASE_COLORS):
        return BASE_COLORS[number], "-"
    color_angle = number * 0.618033988749895 % 1.0
    return to_hex(tuple(hsv_to_rgb((color_angle, 0.74, 0.65)))), LINE_STYLES[
        number // len(BASE_COLORS) % len(LINE_STYLES)
    ]


def shorten_name(label: str) -> str:
    """Shorten a name to fit into a legend, keeping its beginning and end.

    >>> shorten_name("chain-sum-of-three-numbers-seed-1")
    'chain-sum-o…umbers-seed-1'
    """
    label = single_line(label)
    return (
        label
        if len(label) <= MAX_NAME_LENGTH
        else f"{label[: MAX_NAME_LENGTH // 2 - 1]}…{label[-MAX_NAME_LENGTH // 2 - 1 :]}"
    )


def compare_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Curve]:
    """Return the most important team curves, with a line for each run.

    Args:
        runs: log rows by run name.
    """
    comparisons = []
    for metric in map(catalog_metric, COMPARED_METRICS):
        lines = {name: points for name, rows in runs.items() if (points := _extract_points(rows, metric.name))}
        if lines:
            unit = f", {metric.unit}" if metric.unit else ""
            comparisons.append(Curve(metric.label, f"{metric.description}{unit}", _draw(lines)))
    return comparisons


def _metric_lines(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Points]:
    """Return the points of a metric's curves, by agent or reward term.

    Curves of agents replace those of the team, except for reward terms.
    """
    team: dict[str, Points] = {}
    agents: dict[str, Points] = {}
    for name in dict.fromkeys(name for row in rows for name in row if find_metric(name) is metric):
        if points := _extract_points(rows, name):
            (agents if name.startswith("agents/") else team)[_line_label(name, metric)] = points
    lines = agents if agents and metric.name != "rewards/*" else {**team, **agents}
    if metric.hide_zero and not any(y for points in lines.values() for _, y in points):
        return {}
    return lines


def _extract_points(rows: Sequence[Mapping[str, Any]], name: str) -> Points:
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def _has_changes(points: Points) -> bool:
    return len({y for _, y in points}) > 1


def _line_label(name: str, metric: Metric) -> str:
    """Return the label of a line: ``actor``, the term ``format``, or ``actor, format``."""
    first, _, suffix = name.partition("/")
    role = suffix.partition("/")[0] if first in ("agents", "policies") else ""
    term = name.rpartition("/")[2] if metric.name.endswith("*") else ""
    return ", ".join(part for part in (role, term) if part) or "team"
