"""Guard against changes in text format without better results."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import drifts
from marft.evaluation.guards.gains import earns_more
from marft.evaluation.guards.history import KINDS, History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """Report an agent with a changed text format.

    Condition: ½ Σ_k |p_k − q_k| > threshold, with the shares p and q of character kinds in an agent's newest and first
    window. In addition, accuracy (or else reward) must not exceed that of the first window. The guard also reports if
    the share of actions that match the declared pattern (``guards.formats``) fell significantly by more than the
    threshold, regardless of accuracy and reward.
    """
    for drift in drifts(history, "format_rate", settings.window):
        if drift.sure and -drift.rise > settings.format:
            return Finding(
                f"{drift.owner}: {drift.now:.0%} of its actions hold the pattern of guards.formats, and "
                f"{drift.first:.0%} did at first: a reward term of that pattern ([[rewards]] name = 'format') pays "
                "for holding to it",
                drift.well,
            )
    if earns_more(history, settings.window):
        return None
    for role in history.owners("agents", "characters/letters"):
        moved, well = _moved(history, role, settings.window)
        if moved > settings.format:
            return Finding(
                f"{role}: {moved:.0%} of the characters that it writes are of other kinds than at first, and no more "
                "is solved for it: its format changes; look at what it writes (`marft show RUN`), declare what it must "
                "hold (guards.formats), and reward that",
                well,
            )
    return None


def _moved(history: History, role: str, window: int) -> tuple[float, int]:
    """Return the total variation distance and the step before the newest window; 0 and 0 without two windows."""
    names = [f"agents/{role}/characters/{kind}" for kind in KINDS]
    found = [series for name in names if (series := history.now(name, 2 * window)) is not None]
    if not found:
        return 0.0, 0
    changes = [series.values[-window:].mean() - series.values[:window].mean() for series in found]
    return float(np.abs(changes).sum()) / 2, found[0].steps[-window] - 1
