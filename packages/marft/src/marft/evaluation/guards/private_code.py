"""Guard against private codes: messages become less readable while they become more useful."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import find_drifts
from marft.evaluation.guards.effect_size import MIN_STANDARD_ERRORS, has_improved
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with useful messages that become unreadable to the base model.

    Condition: mean base surprisal over the newest window − mean over the first window > threshold, significantly, for
    an agent with messages that others read. In addition, accuracy (or else reward) must significantly exceed that of
    the first window.
    """
    if not has_improved(history, settings.window, MIN_STANDARD_ERRORS):
        return None
    for drift in find_drifts(history, "base_surprisal", settings.window):
        message_tokens = history.current_series(f"agents/{drift.owner}/message_tokens", 1)
        if (
            message_tokens is not None
            and message_tokens.values[-1] > 0
            and drift.is_significant
            and drift.increase > settings.private_code
        ):
            return GuardAlert(
                f"{drift.owner}: others read its messages and solve more, and to the untuned base they went from "
                f"{drift.first:.2f} to {drift.last:.2f} nats a token: they may be a code; read them "
                "(`marft show RUN`), and hold it to its base (algorithm.kl.coefficient)",
                drift.last_good_step,
            )
    return None
