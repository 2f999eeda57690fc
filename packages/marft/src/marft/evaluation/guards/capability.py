"""Guard against forgetting: the loss on held-out text rises."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a policy with a higher loss on the held-out text than at first.

    Condition: newest loss > (1 + threshold) · first loss, for any policy. The loss is measured on the same tokens each
    time, so a single value is enough.
    """
    for policy in history.owners("policies", "held_out_loss"):
        series = history.series(f"policies/{policy}/held_out_loss")
        if len(series) < 2:  # a run that resumes from its beginning measures the loss again
            continue
        first, last = float(series.values[0]), float(series.values[-1])
        if last > (1.0 + settings.capability) * first:
            return GuardAlert(
                f"policies.{policy}: its loss on the held-out text went from {first:.2f} to {last:.2f} nats a token: "
                "it forgets what the task does not ask for; lower its learning_rate, hold it to its base "
                "(algorithm.kl.coefficient), or stop at an earlier checkpoint",
                series.steps[-2],
            )
    return None
