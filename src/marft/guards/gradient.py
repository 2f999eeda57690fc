"""A policy's gradients explode."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.guards.history import History
from marft.guards.interface import Finding

USUAL = 1.0  # norm that gradients are commonly clipped to


def look(history: History, settings: GuardSettings) -> Finding | None:
    """median of the window's gradient norm > threshold · max(the largest one before the window, 1), of any policy.

    Norms rise as policies become surer, by and by, and a single batch may be odd; ten times all that was, for most of
    a window, is neither. A norm of 1 is about what gradients are clipped to: an adapter begins with far less, and may
    leave that quickly.
    """
    window = settings.window
    for policy in history.owners("policies", "gradient_norm"):
        series = history.now(f"policies/{policy}/gradient_norm", 2 * window)
        if series is None:
            continue
        largest, median = float(series.values[:-window].max()), float(np.median(series.values[-window:]))
        if median > settings.gradient * max(largest, USUAL):
            return Finding(
                f"policies.{policy}: its gradient norm went from {largest:.2g} at most to {median:.2g}, over {window} "
                "steps: it is leaving where its loss means anything; lower its learning_rate or "
                "algorithm.optimizer.max_gradient_norm",
                series.steps[-window] - 1,
            )
    return None
