"""A policy's gradients explode."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """median of the window's gradient norm > threshold · the largest one before the window, of any policy. Norms of 0
    do not count: where nothing tells attempts apart there is no gradient.

    Norms rise as policies become surer, by and by, and a single batch may be odd; ten times all that was, for most of
    a window, is neither. Of what was, there have to be two windows: an adapter begins with small norms, and leaves
    them quickly.
    """
    window = settings.window
    for policy in history.owners("policies", "gradient_norm"):
        series = history.now(f"policies/{policy}/gradient_norm", 3 * window)
        if series is None or np.count_nonzero(series.values[:-window]) < 2 * window:
            continue
        largest, median = float(series.values[:-window].max()), float(np.median(series.values[-window:]))
        if median > settings.gradient * largest:
            return Finding(
                f"policies.{policy}: its gradient norm went from {largest:.2g} at most to {median:.2g}, over {window} "
                "steps: it is leaving where its loss means anything; lower its learning_rate or "
                "algorithm.optimizer.max_gradient_norm",
                series.steps[-window] - 1,
            )
    return None
