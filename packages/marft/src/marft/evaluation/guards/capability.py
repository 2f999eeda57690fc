"""A policy forgets what no task asks for."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """newest loss on the held-out text > (1 + threshold) · its first one, of any policy. It is of the same
    tokens each time, so a single one says it.
    """
    for policy in history.owners("policies", "held_out_loss"):
        series = history.series(f"policies/{policy}/held_out_loss")
        if len(series) < 2:  # a run that went back to its beginning measures it anew
            continue
        first, now = float(series.values[0]), float(series.values[-1])
        if now > (1.0 + settings.capability) * first:
            return Finding(
                f"policies.{policy}: its loss on the held-out text went from {first:.2f} to {now:.2f} nats a token: it "
                "forgets what the task does not ask for; lower its learning_rate, hold it to its base "
                "(algorithm.kl.coefficient), or stop at an earlier checkpoint",
                series.steps[-2],
            )
    return None
