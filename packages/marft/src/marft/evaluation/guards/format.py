"""Guard against changes in text format without better results."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import find_drifts
from marft.evaluation.guards.effect_size import has_improved
from marft.evaluation.guards.history import CHARACTER_KINDS, History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with a changed text format.

    Condition: ½ Σ_k |p_k − q_k| > threshold, with the shares p and q of character kinds in an agent's newest and first
    window. In addition, accuracy (or else reward) must not exceed that of the first window. The guard also reports if
    the share of actions that match the declared pattern (``guards.formats``) fell significantly by more than the
    threshold, regardless of accuracy and reward.
    """
    for drift in find_drifts(history, "format_rate", settings.window):
        if drift.is_significant and -drift.increase > settings.format:
            return GuardAlert(
                f"{drift.owner}: {drift.last:.0%} of its actions hold the pattern of guards.formats, and "
                f"{drift.first:.0%} did at first: a reward term of that pattern ([[rewards]] name = 'format') pays "
                "for holding to it",
                drift.last_good_step,
            )
    if has_improved(history, settings.window):
        return None
    for role in history.owners("agents", "characters/letters"):
        distance, last_good_step = _format_distance(history, role, settings.window)
        if distance > settings.format:
            return GuardAlert(
                f"{role}: {distance:.0%} of the characters that it writes are of other kinds than at first, and no "
                "more is solved for it: its format changes; look at what it writes (`marft show RUN`), declare what it "
                "must hold (guards.formats), and reward that",
                last_good_step,
            )
    return None


def _format_distance(history: History, role: str, window: int) -> tuple[float, int]:
    """Return the total variation distance and the step before the newest window; 0 and 0 without two windows."""
    names = [f"agents/{role}/characters/{kind}" for kind in CHARACTER_KINDS]
    series_list = [series for name in names if (series := history.current_series(name, 2 * window)) is not None]
    if not series_list:
        return 0.0, 0
    changes = [series.values[-window:].mean() - series.values[:window].mean() for series in series_list]
    return float(np.abs(changes).sum()) / 2, series_list[0].steps[-window] - 1
