"""Factors that a study varies one at a time: their values, the recipe's overrides, and the plots of their effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from recording import Row, collapsed, tidy

BASE = "as shipped"
Factors = Mapping[str, Mapping[str, Sequence[str]]]  # factor → value → overrides; no overrides: as shipped

LEARNING_RATE: Mapping[str, Sequence[str]] = {
    "1.5e-4": ["--algorithm.optimizer.learning_rate", "1.5e-4"],
    "5e-4": [],
    "1.5e-3": ["--algorithm.optimizer.learning_rate", "1.5e-3"],
}
CLIP: Mapping[str, Sequence[str]] = {
    "0.1": ["--algorithm.objective.clip", "0.1"],
    "0.2": [],
    "0.4": ["--algorithm.objective.clip", "0.4"],
}


def settings_of(factors: Factors) -> dict[str, Sequence[str]]:
    """Return every distinct setting by name, the shipped one first and once."""
    changed = {
        f"{factor} {value}": overrides
        for factor, values in factors.items()
        for value, overrides in values.items()
        if overrides
    }
    return {BASE: [], **changed}


def rows_of(rows: Sequence[Row], factor: str, value: str, factors: Factors) -> list[Row]:
    """Return the runs at one value of a factor."""
    wanted = f"{factor} {value}" if factors[factor][value] else BASE
    return [row for row in rows if row["setting"] == wanted]


def cell(rows: Sequence[Row]) -> str:
    """Format mean and range over seeds, with the number of collapses if there are any: ``97.1% (93.8 to 99.6)``."""
    if not rows:
        return ""
    after = [100 * row["after"]["sampled"] for row in rows]
    lost = sum(map(collapsed, rows))
    return f"{np.mean(after):.1f} % ({min(after):.1f} to {max(after):.1f}){f', {lost} collapsed' if lost else ''}"


def dots(axes: Axes, values: Sequence[Any], rows: Sequence[Sequence[Row]], label: str = "") -> None:
    """Plot a dot per seed, and a line through the means."""
    places = [place for place, mine in enumerate(rows) if mine]
    means = [np.mean([row["after"]["sampled"] for row in rows[place]]) for place in places]
    (line,) = axes.plot(places, means, linewidth=1.2, label=label)
    for place in places:
        after = [row["after"]["sampled"] for row in rows[place]]
        axes.plot([place] * len(after), after, "o", color=line.get_color(), markersize=3.5, alpha=0.7)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_ylim(0, 1.02)
    axes.tick_params(labelsize=8)
    tidy(axes)
