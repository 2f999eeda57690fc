"""Self-contained HTML report of a run, ``report.html``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.colors import hsv_to_rgb, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from marft.common import atomic
from marft.common.metrics import Metric, all_metrics, catalog_metric, find_metric
from marft.common.texts import single_line
from marft.common.types import Episode
from marft.config.secrets import mask_recipe
from marft.evaluation.checkpoint_results import (
    compare_runs,
    describe_unevaluated,
    format_cells,
    format_passes,
    list_measures,
)
from marft.evaluation.episode_graph import draw_episode
from marft.evaluation.guards.monitor import replay_messages
from marft.evaluation.html_pages import disable_math_text, render_page, to_svg
from marft.evaluation.metric_tables import (
    Cohort,
    build_metric_rows,
    cohort_fields,
    column_names,
    compute_cohort_metrics,
)
from marft.evaluation.transcripts import MAX_EXAMPLES, count_failure_reasons, episode_to_dict
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder, parse_step, read_headline

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
Rows = Sequence[Mapping[str, object]]  # rows of a metrics log
MAX_COHORTS = 20  # maximum number of cohorts of a field on the page


@dataclass(frozen=True, slots=True)
class Curve:
    """Plot of one metric over the steps, with its label and meaning."""

    label: str
    meaning: str
    image: Markup


def draw_main_curves(rows: Rows) -> list[Curve]:
    """Return the most important curves with data in ``metrics.jsonl``."""
    return _build_curves(rows, map(catalog_metric, MAIN_METRICS))


def other_curves(rows: Rows) -> list[Curve]:
    """Return curves for the remaining metrics if they changed. Metrics of user-defined parts come last."""
    other_metrics = (metric for metric in all_metrics() if metric.name not in MAIN_METRICS)
    cataloged = _build_curves(rows, other_metrics, changing=True)
    unknown = dict.fromkeys(name for row in rows for name in row if name != "step" and find_metric(name) is None)
    points_by_name = {name: _extract_points(rows, name) for name in unknown}
    return cataloged + [
        Curve(name, "", _draw({name: points})) for name, points in points_by_name.items() if _has_changes(points)
    ]


def _build_curves(rows: Rows, metrics: Iterable[Metric], changing: bool = False) -> list[Curve]:
    curves = []
    for metric in metrics:
        lines = _metric_lines(rows, metric)
        if any(map(_has_changes, lines.values())) if changing else lines:
            curves.append(_build_curve(metric, lines))
    return curves


def _build_curve(metric: Metric, lines: Mapping[str, Points]) -> Curve:
    unit = f", {metric.unit}" if metric.unit else ""
    return Curve(metric.label, f"{metric.description}{unit}", _draw(lines))


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
    style = LINE_STYLES[number // len(BASE_COLORS) % len(LINE_STYLES)]
    return to_hex(tuple(hsv_to_rgb((color_angle, 0.74, 0.65)))), style


def shorten_name(label: str) -> str:
    """Shorten a name to fit into a legend, keeping its beginning and end.

    >>> shorten_name("chain-sum-of-three-numbers-seed-1")
    'chain-sum-o…umbers-seed-1'
    """
    label = single_line(label)
    if len(label) <= MAX_NAME_LENGTH:
        return label
    return f"{label[: MAX_NAME_LENGTH // 2 - 1]}…{label[-MAX_NAME_LENGTH // 2 - 1 :]}"


def compare_curves(runs: Mapping[str, Rows]) -> list[Curve]:
    """Return the most important team curves, with a line for each run.

    Args:
        runs: log rows by run name.
    """
    curves = []
    for metric in map(catalog_metric, COMPARED_METRICS):
        lines = {name: points for name, rows in runs.items() if (points := _extract_points(rows, metric.name))}
        curves += [_build_curve(metric, lines)] if lines else []
    return curves


def _metric_lines(rows: Rows, metric: Metric) -> dict[str, Points]:
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


def write_report(folder: RunFolder, against: Sequence[RunFolder] = ()) -> None:
    """Write a run's report from its folder, with other runs beside its own results."""
    recipe, metrics, evaluations = folder.read_recipe(), folder.read_metrics(), folder.read_evaluations()
    rows = compare_runs([folder, *against])
    recorded = RecordedEpisodes(folder)
    episodes, seconds = (sum(row.get(name) or 0.0 for row in metrics) for name in ("episodes", "seconds"))
    html = render_page(
        "marft.evaluation",
        "report.html.jinja",
        name=folder.path.name,
        summary=f"{recipe.algorithm.name} at {recipe.algorithm.level} level · "
        f"{' → '.join(agent.role for agent in recipe.agents)} · "
        f"{len(metrics)} of {recipe.training.steps} steps, {episodes:.0f} episodes in {seconds:.0f} s",
        dropped=int(sum(row.get("episodes_dropped") or 0.0 for row in metrics)),
        reasons=recorded.failure_reasons(metrics),
        guards=replay_messages(recipe.guards, metrics),
        gains=rows,
        missing=describe_unevaluated(against),
        measures=list_measures(rows),
        cells_of=format_cells,
        unknown=any(row.unknown for row in rows),
        several=len({row.run for row in rows}) > 1,
        worth=read_headline(folder.worth / "worth.json"),
        passes=format_passes(evaluations),
        headings=column_names(evaluations),
        trajectories=build_metric_rows(evaluations),
        cohorts=_cohort_metrics(evaluations),
        most_cohorts=MAX_COHORTS,
        beside=compare_curves(read_metrics_by_run([folder, *against])) if against else [],
        graph=recorded.draw_graph(),
        curves=draw_main_curves(metrics),
        others=other_curves(metrics),
        samples=_evaluation_samples(evaluations) or recorded.samples(),
        # last, because the calls above collect the unreadable files
        damaged=[f"metrics.jsonl: {problem}" for problem in folder.metrics_problems()] + recorded.problems,
        recipe=mask_recipe(folder.config_path.read_text(encoding="utf-8")),
    )
    atomic.write_file(folder.report_path, html)


def read_metrics_by_run(folders: Sequence[RunFolder]) -> dict[str, list[dict[str, object]]]:
    """Return the rows of several metrics logs by run name, or by path for runs with the same name."""
    name_counts = Counter(folder.path.name for folder in folders)
    names = [str(folder.path) if name_counts[folder.path.name] > 1 else folder.path.name for folder in folders]
    return {name: folder.read_metrics() for name, folder in zip(names, folders, strict=True)}


def _cohort_metrics(evaluations: Sequence[Mapping[str, object]]) -> dict[str, list[Cohort]]:
    """Return metrics by cohort for each field; [] for a field with too many cohorts for a page."""
    by_field = {field: compute_cohort_metrics(evaluations, field) for field in cohort_fields(evaluations)}
    return {field: cohorts if len(cohorts) <= MAX_COHORTS else [] for field, cohorts in by_field.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """Task with the team's attempts."""

    task: str
    attempts: Sequence[tuple[str, Mapping[str, object]]]  # label of the time, and the episode


def _evaluation_samples(evaluations: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """Return held-out tasks before and after training, from sampled evaluations if any exist."""
    evaluations_with_examples = [e for e in evaluations if not e["shuffled_messages"] and e.get("examples")]
    sampled = [e for e in evaluations_with_examples if e["mode"] == "sampled"] or evaluations_with_examples
    ordered = sorted(sampled, key=lambda e: (e["checkpoint"] != "base", e["checkpoint"]))
    tasks: dict[str, list[tuple[str, Mapping[str, object]]]] = {}
    for evaluation in [*ordered[:1], *ordered[1:][-1:]]:
        label = "before" if evaluation["checkpoint"] == "base" else evaluation["checkpoint"]
        for episode in evaluation["examples"]:
            tasks.setdefault(episode["observation"], []).append((label, episode))
    return [Sample(task, attempts) for task, attempts in tasks.items()]


class RecordedEpisodes:
    """Recorded training episodes, with the problems of unreadable files."""

    def __init__(self, folder: RunFolder) -> None:
        self._files = folder.recorded_steps()
        self.problems: list[str] = []
        self._newest = [episode for file in self._files[-1:] for episode in self._read_file(file)]

    def failure_reasons(self, rows: Rows) -> list[tuple[str, int]]:
        """Return the reasons for unscored episodes, each with its number of episodes."""
        steps = {row["step"] for row in rows if row.get("episodes_dropped")}
        older = [episode for file in self._files[:-1] if parse_step(file) in steps for episode in self._read_file(file)]
        newest = self._newest if self._files and parse_step(self._files[-1]) in steps else []
        return count_failure_reasons([*older, *newest])

    def samples(self) -> list[Sample]:
        """Return an episode for each task in the newest step."""
        tasks = {episode.task.id: episode for episode in self._newest if episode.is_scored}
        return [
            Sample(
                episode.transitions[0].observation.full_text,
                [(f"training, {self._files[-1].stem}", episode_to_dict(episode))],
            )
            for episode in list(tasks.values())[:MAX_EXAMPLES]
        ]

    def draw_graph(self) -> Markup | None:
        """Draw the first episode in the newest step with the largest number of acting agents, or return None."""
        candidates = [candidate for candidate in self._newest if candidate.is_scored and candidate.actions]
        episode = max(
            candidates, key=lambda candidate: len({action.agent for action in candidate.actions}), default=None
        )
        return to_svg(draw_episode(episode)) if episode else None

    def _read_file(self, file: Path) -> list[Episode]:
        try:
            return read_episodes(file)
        except ValueError as error:
            self.problems.append(str(error))
            return []
