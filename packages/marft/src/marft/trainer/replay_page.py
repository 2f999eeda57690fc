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
from marft.common.texts import cut, one_line
from marft.common.types import Action, Episode
from marft.evaluation.pages import page
from marft.trainer.interfaces import Floats
from marft.trainer.replay import Audit, Opinion

AUDIT = ("groups", "group size", "groups of one", "groups all equal", "zero advantages")
SHOWN = 160  # maximum characters of a text in the terminal
SHADED = 90  # percentile of an algorithm's |advantages| shown in full color


@dataclass(frozen=True, slots=True)
class Tint:
    """Text with its advantage: color for the page, number for the tooltip."""

    text: str
    advantage: float
    colour: str


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Episode heatmap: messages, and per algorithm the advantage for every word."""

    episode: Episode
    actions: Sequence[Action]
    rows: Sequence[tuple[str, Sequence[tuple[float | None, Sequence[Tint]]]]]  # algorithm → (mean, words) per action


def audit_table(audit: Audit) -> Table:
    """Return a table with one row per algorithm: groups, zero advantages, and gradient shares."""
    table = Table(box=None, pad_edge=False)
    roles = list(audit.opinions[0].gradient_share)
    _numbers(table, "algorithm", left=True)
    _numbers(table, *AUDIT, *(f"gradient: {role}" for role in roles))
    table.add_column("critic")
    for row in audit_rows(audit):
        table.add_row(*map(Text, row))
    return table


def audit_rows(audit: Audit) -> list[list[str]]:
    """Return the cells of :func:`audit_table`."""
    return [
        [
            opinion.algorithm,
            *(_count(opinion.metrics.get(name)) for name in ("groups",)),
            _sizes(opinion.metrics),
            *(_count(opinion.metrics.get(name)) for name in ("groups_of_one", "groups_all_equal")),
            _share(opinion.metrics.get("zero_advantage_fraction", math.nan)),
            *(_share(share) for share in opinion.gradient_share.values()),
            opinion.critic and f"{opinion.critic}; {_explains(opinion.explained_variance)}",
        ]
        for opinion in audit.opinions
    ]


def agreement_table(audit: Audit) -> Table:
    """Return a table with rank correlations between advantages, and sign agreement in brackets."""
    table = Table(box=None, pad_edge=False)
    names = [opinion.algorithm for opinion in audit.opinions]
    _numbers(table, "agreement", left=True)
    _numbers(table, *names[1:])
    for row in agreement_rows(audit)[:-1]:
        table.add_row(*map(Text, (row[0], *row[2:])))
    return table


def agreement_rows(audit: Audit) -> list[list[str]]:
    """Return a square of cells, filled above the diagonal."""
    names = [opinion.algorithm for opinion in audit.opinions]
    rows = []
    for a in names:
        cells = []
        for b in names:
            rank, sign = audit.rank_agreement.get((a, b)), audit.sign_agreement.get((a, b), math.nan)
            cells.append("" if rank is None else "–" if math.isnan(rank) else f"{rank:+.2f} ({_share(sign)})")
        rows.append([a, *cells])
    return rows


def action_table(audit: Audit, pictures: Sequence[Picture]) -> Table:
    """Return a table with mean advantages by action and algorithm, for the given heatmaps.

    In a narrow terminal only the texts are shortened, never the numbers.
    """
    table = Table(box=None, pad_edge=False)
    _numbers(table, "action", left=True)
    _numbers(table, *(opinion.algorithm for opinion in audit.opinions))
    table.add_column("text", overflow="fold")
    numbers = [""] * len(audit.opinions)
    for picture in pictures:
        episode = picture.episode
        name = one_line(f"{episode.task.id} #{episode.sample}, {_outcome(episode)}")
        table.add_row("", *numbers, Text(name, style="bold"))
        for index, action in enumerate(picture.actions):
            means = (cells[index][0] for _, cells in picture.rows)
            cells = (action.id, *("" if m is None else f"{m:+.2f}" for m in means), cut(one_line(action.text), SHOWN))
            table.add_row(*(Text(one_line(cell)) for cell in cells))
    return table


def pictures_of(audit: Audit, count: int) -> list[Picture]:
    """Return heatmaps for the episodes with the largest disagreement between algorithms.

    Disagreement is measured in units of each algorithm's own advantages. The selection prefers different tasks.

    Args:
        audit: audit of the step.
        count: maximum number of heatmaps.
    """
    scales = {opinion.algorithm: _percentile(opinion) for opinion in audit.opinions}
    pictures, disagreements, first = [], [], 0
    for episode in audit.episodes:
        last = first + len(episode.actions)
        rows = [
            (opinion.algorithm, [
                _cell(opinion.advantages[k], audit.words[k], scales[opinion.algorithm]) for k in range(first, last)
            ])
            for opinion in audit.opinions
        ]  # fmt: skip
        pictures.append(Picture(episode, episode.actions, rows))
        means = np.array(
            [[(cell[0] or 0.0) / (scales[name] or 1.0) for cell in cells] for name, cells in rows], np.float64
        )
        disagreements.append(float(means.std(axis=0).sum()))
        first = last
    order = sorted(range(len(pictures)), key=lambda k: -disagreements[k])
    first_of_task = {pictures[k].episode.task.id: k for k in reversed(order)}
    order.sort(key=lambda k: first_of_task[pictures[k].episode.task.id] != k)
    return [pictures[k] for k in order[:count]]


def write_replay(path: Path, title: str, audit: Audit, pictures: Sequence[Picture]) -> None:
    """Write the report to ``<path>.html`` and ``<path>.json``."""
    written = page(
        "marft.trainer",
        "replay.html.jinja",
        title=title,
        audit=audit,
        titles=[*AUDIT, *(f"gradient: {role}" for role in audit.opinions[0].gradient_share)],
        rows=audit_rows(audit),
        agreement=agreement_rows(audit),
        names=[opinion.algorithm for opinion in audit.opinions],
        notes=notes_of(audit),
        pictures=pictures,
        outcome=_outcome,
    )
    atomic.write_file(path.with_suffix(".html"), written)
    atomic.write_file(path.with_suffix(".json"), json.dumps(_without_nan(audit.as_json()), indent=2) + "\n")


def notes_of(audit: Audit) -> list[str]:
    """Return every algorithm's notes, each prefixed with its algorithm."""
    return [f"{opinion.algorithm}: {note}" for opinion in audit.opinions for note in opinion.notes]


def _cell(advantages: Floats | None, words: Sequence[str], scale: float) -> tuple[float | None, list[Tint]]:
    if advantages is None:
        return None, [Tint("".join(words), 0.0, "transparent")]
    if len(advantages) != len(words):
        words = ["".join(words)]
    return float(advantages.mean()), [
        Tint(word, float(a), _colour(float(a), scale)) for word, a in zip(words, advantages, strict=True)
    ]


def _colour(advantage: float, scale: float) -> str:
    strength = min(1.0, abs(advantage) / scale) if scale else 0.0
    red, green, blue = (30, 130, 76) if advantage > 0 else (205, 43, 49)
    return f"rgba({red}, {green}, {blue}, {0.6 * strength:.2f})"


def _percentile(opinion: Opinion) -> float:
    sizes = [np.abs(advantages) for advantages in opinion.advantages if advantages is not None]
    return float(np.percentile(np.concatenate(sizes), SHADED)) if sizes else 0.0


def _outcome(episode: Episode) -> str:
    if not episode.scored:
        return f"{episode.status}, not scored"
    solved = {True: "solved", False: "not solved", None: episode.status}[episode.success]
    return f"{solved}, reward {episode.total_reward:g}"


def _numbers(table: Table, *titles: str, left: bool = False) -> None:
    """Add columns of fixed width, which never shrink in favor of text."""
    for title in map(one_line, titles):
        table.add_column(Text(title), justify="left" if left else "right", no_wrap=True, min_width=len(title))


def _explains(variance: float) -> str:
    return "the returns do not vary" if math.isnan(variance) else f"explains {variance:.0%} of the returns"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _sizes(metrics: Mapping[str, float]) -> str:
    if "group_size" not in metrics:
        return ""
    mean, least = metrics["group_size"], metrics["group_size_min"]
    return f"{mean:.3g}" if mean == least else f"{mean:.3g} (from {least:.0f})"


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0%}"


def _without_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
