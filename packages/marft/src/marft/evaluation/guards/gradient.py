"""Guard against exploding gradients."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a policy with exploding gradients.

    Condition: median gradient norm of the window > threshold · largest norm before the window, for any policy. Norms of
    0 do not count: there is no gradient if all attempts have the same advantage.

    Norms rise slowly as policies become more certain, and a single batch may be an outlier. Ten times the previous
    maximum for most of a window is neither. Two windows must precede the newest one, because a new adapter starts with
    small norms that soon rise.
    """
    window = settings.window
    for policy in history.owners("policies", "gradient_norm"):
        series = history.current_series(f"policies/{policy}/gradient_norm", 3 * window)
        if series is None or np.count_nonzero(series.values[:-window]) < 2 * window:
            continue
        largest, median = float(series.values[:-window].max()), float(np.median(series.values[-window:]))
        if median > settings.gradient * largest:
            return GuardAlert(
                f"policies.{policy}: its gradient norm went from {largest:.2g} at most to {median:.2g}, over {window} "
                "steps: it is leaving where its loss means anything; lower its learning_rate or "
                "algorithm.optimizer.max_gradient_norm",
                series.steps[-window] - 1,
            )
    return None
