"""Guard against private codes: messages become less readable while they become more useful."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import drifts
from marft.evaluation.guards.gains import SURE, earns_more
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """Report an agent with useful messages that become unreadable to the base model.

    Condition: mean base surprisal over the newest window − mean over the first window > threshold, significantly, for
    an agent with messages that others read. In addition, accuracy (or else reward) must significantly exceed that of
    the first window.
    """
    if not earns_more(history, settings.window, SURE):
        return None
    for drift in drifts(history, "base_surprisal", settings.window):
        read = history.now(f"agents/{drift.owner}/message_tokens", 1)
        if read is not None and read.values[-1] > 0 and drift.sure and drift.rise > settings.private_code:
            return Finding(
                f"{drift.owner}: others read its messages and solve more, and to the untuned base they went from "
                f"{drift.first:.2f} to {drift.now:.2f} nats a token: they may be a code; read them (`marft show RUN`), "
                "and hold it to its base (algorithm.kl.coefficient)",
                drift.well,
            )
    return None
