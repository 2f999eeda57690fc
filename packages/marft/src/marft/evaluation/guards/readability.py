"""Guard against text that the base model finds unlikely."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import find_drifts
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with text that becomes less likely under the base model.

    Condition: mean base surprisal over the newest window − mean over the first window > threshold, significantly, for
    any agent.

    One nat per token is a 2.7 times higher perplexity.
    """
    for drift in find_drifts(history, "base_surprisal", settings.window):
        if drift.is_significant and drift.increase > settings.readability:
            return GuardAlert(
                f"{drift.owner}: to the untuned base its text went from {drift.first:.2f} to {drift.last:.2f} nats a "
                "token: people may find it hard to read; look at what it writes (`marft show RUN`), and hold it to "
                "its base (algorithm.kl.coefficient)",
                drift.last_good_step,
            )
    return None
