"""Report of a credit audit: tables for the terminal, and an HTML page with a heatmap per episode."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from marft.common import atomic
from marft.common.texts import single_line, truncate
from marft.common.types import Action, Episode
from marft.config.interfaces.credit import Floats
from marft.evaluation.html_pages import render_page
from marft_lab.credit_audit.audit import CreditAudit, CreditEstimate

AUDIT_COLUMNS = ("groups", "group size", "groups of one", "groups all equal", "zero advantages")
MAX_CHARACTERS = 160  # maximum characters of a text in the terminal
COLOR_PERCENTILE = 90  # percentile of an algorithm's |advantages| shown in full color


@dataclass(frozen=True, slots=True)
class ColoredText:
    """Text with its advantage: color for the page, number for the tooltip."""

    text: str
    advantage: float
    color: str


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeHeatmap:
    """Episode heatmap: messages, and per algorithm the advantage for every word."""

    episode: Episode
    actions: Sequence[Action]
    rows: Sequence[
        tuple[str, Sequence[tuple[float | None, Sequence[ColoredText]]]]
    ]  # algorithm → (mean, words) per action


def audit_table(audit: CreditAudit) -> Table:
    """Return a table with one row per algorithm: groups, zero advantages, and gradient shares."""
    table = Table(box=None, pad_edge=False)
    roles = list(audit.estimates[0].gradient_share)
    _add_columns(table, "algorithm", align_left=True)
    _add_columns(table, *AUDIT_COLUMNS, *(f"gradient: {role}" for role in roles))
    table.add_column("critic")
    for row in audit_rows(audit):
        table.add_row(*map(Text, row))
    return table


def audit_rows(audit: CreditAudit) -> list[list[str]]:
    """Return the cells of :func:`audit_table`."""
    return [
        [
            estimate.algorithm,
            _format_count(estimate.metrics.get("groups")),
            _format_sizes(estimate.metrics),
            *(_format_count(estimate.metrics.get(name)) for name in ("singleton_groups", "zero_variance_groups")),
            _format_share(estimate.metrics.get("zero_advantage_fraction", math.nan)),
            *(_format_share(share) for share in estimate.gradient_share.values()),
            estimate.critic and f"{estimate.critic}; {_describe_variance(estimate.explained_variance)}",
        ]
        for estimate in audit.estimates
    ]


def agreement_table(audit: CreditAudit) -> Table:
    """Return a table with rank correlations between advantages, and sign agreement in brackets."""
    table = Table(box=None, pad_edge=False)
    names = [estimate.algorithm for estimate in audit.estimates]
    _add_columns(table, "agreement", align_left=True)
    _add_columns(table, *names[1:])
    for row in agreement_rows(audit)[:-1]:
        table.add_row(*map(Text, (row[0], *row[2:])))
    return table


def agreement_rows(audit: CreditAudit) -> list[list[str]]:
    """Return a square of cells, filled above the diagonal."""
    names = [estimate.algorithm for estimate in audit.estimates]
    rows = []
    for a in names:
        cells = []
        for b in names:
            rank, sign = audit.rank_agreement.get((a, b)), audit.sign_agreement.get((a, b), math.nan)
            cells.append("" if rank is None else "–" if math.isnan(rank) else f"{rank:+.2f} ({_format_share(sign)})")
        rows.append([a, *cells])
    return rows


def action_table(audit: CreditAudit, heatmaps: Sequence[EpisodeHeatmap]) -> Table:
    """Return a table with mean advantages by action and algorithm, for the given heatmaps.

    In a narrow terminal only the texts are shortened, never the numbers.
    """
    table = Table(box=None, pad_edge=False)
    _add_columns(table, "action", align_left=True)
    _add_columns(table, *(estimate.algorithm for estimate in audit.estimates))
    table.add_column("text", overflow="fold")
    numbers = [""] * len(audit.estimates)
    for heatmap in heatmaps:
        episode = heatmap.episode
        name = single_line(f"{episode.task.id} #{episode.sample}, {_describe_outcome(episode)}")
        table.add_row("", *numbers, Text(name, style="bold"))
        for index, action in enumerate(heatmap.actions):
            means = (cells[index][0] for _, cells in heatmap.rows)
            cells = (
                action.id,
                *("" if m is None else f"{m:+.2f}" for m in means),
                truncate(single_line(action.text), MAX_CHARACTERS),
            )
            table.add_row(*(Text(single_line(cell)) for cell in cells))
    return table


def select_heatmaps(audit: CreditAudit, count: int) -> list[EpisodeHeatmap]:
    """Return heatmaps for the episodes with the largest disagreement between algorithms.

    Disagreement is measured in units of each algorithm's own advantages. The selection prefers different tasks.

    Args:
        audit: audit of the step.
        count: maximum number of heatmaps.
    """
    scales = {estimate.algorithm: _compute_scale(estimate) for estimate in audit.estimates}
    heatmaps, disagreements, first = [], [], 0
    for episode in audit.episodes:
        last = first + len(episode.actions)
        rows = [
            (
                estimate.algorithm,
                [
                    _build_cell(estimate.advantages[k], audit.words[k], scales[estimate.algorithm])
                    for k in range(first, last)
                ],
            )
            for estimate in audit.estimates
        ]
        heatmaps.append(EpisodeHeatmap(episode, episode.actions, rows))
        means = np.array(
            [[(cell[0] or 0.0) / (scales[name] or 1.0) for cell in cells] for name, cells in rows], np.float64
        )
        disagreements.append(float(means.std(axis=0).sum()))
        first = last
    order = sorted(range(len(heatmaps)), key=lambda k: -disagreements[k])
    first_of_task = {heatmaps[k].episode.task.id: k for k in reversed(order)}
    order.sort(key=lambda k: first_of_task[heatmaps[k].episode.task.id] != k)
    return [heatmaps[k] for k in order[:count]]


def write_credit_report(path: Path, title: str, audit: CreditAudit, heatmaps: Sequence[EpisodeHeatmap]) -> None:
    """Write the report to ``<path>.html`` and ``<path>.json``."""
    html = render_page(
        "marft_lab.credit_audit",
        "replay.html.jinja",
        title=title,
        audit=audit,
        titles=[*AUDIT_COLUMNS, *(f"gradient: {role}" for role in audit.estimates[0].gradient_share)],
        rows=audit_rows(audit),
        agreement=agreement_rows(audit),
        names=[estimate.algorithm for estimate in audit.estimates],
        notes=audit_notes(audit),
        pictures=heatmaps,
        outcome=_describe_outcome,
    )
    atomic.write_file(path.with_suffix(".html"), html)
    atomic.write_file(
        path.with_suffix(".json"), json.dumps(atomic.replace_non_finite(audit.as_json()), indent=2) + "\n"
    )


def audit_notes(audit: CreditAudit) -> list[str]:
    """Return every algorithm's notes, each prefixed with its algorithm."""
    return [f"{estimate.algorithm}: {note}" for estimate in audit.estimates for note in estimate.notes]


def _build_cell(
    advantages: Floats | None, words: Sequence[str], scale: float
) -> tuple[float | None, list[ColoredText]]:
    if advantages is None:
        return None, [ColoredText("".join(words), 0.0, "transparent")]
    if len(advantages) != len(words):
        words = ["".join(words)]
    return float(advantages.mean()), [
        ColoredText(word, float(a), _color_of(float(a), scale)) for word, a in zip(words, advantages, strict=True)
    ]


def _color_of(advantage: float, scale: float) -> str:
    opacity = min(1.0, abs(advantage) / scale) if scale else 0.0
    red, green, blue = (30, 130, 76) if advantage > 0 else (205, 43, 49)
    return f"rgba({red}, {green}, {blue}, {0.6 * opacity:.2f})"


def _compute_scale(estimate: CreditEstimate) -> float:
    sizes = [np.abs(advantages) for advantages in estimate.advantages if advantages is not None]
    return float(np.percentile(np.concatenate(sizes), COLOR_PERCENTILE)) if sizes else 0.0


def _describe_outcome(episode: Episode) -> str:
    if not episode.is_scored:
        return f"{episode.status}, not scored"
    solved = {True: "solved", False: "not solved", None: episode.status}[episode.success]
    return f"{solved}, reward {episode.total_reward:g}"


def _add_columns(table: Table, *titles: str, align_left: bool = False) -> None:
    """Add columns of fixed width, which never shrink in favor of text."""
    for title in map(single_line, titles):
        table.add_column(Text(title), justify="left" if align_left else "right", no_wrap=True, min_width=len(title))


def _describe_variance(variance: float) -> str:
    return "the returns do not vary" if math.isnan(variance) else f"explains {variance:.0%} of the returns"


def _format_count(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _format_sizes(metrics: Mapping[str, float]) -> str:
    if "group_size" not in metrics:
        return ""
    mean, least = metrics["group_size"], metrics["group_size_min"]
    return f"{mean:.3g}" if mean == least else f"{mean:.3g} (from {least:.0f})"


def _format_share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0%}"
