"""Messages become unreadable while they become more useful: a code that only the team knows."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.drift import drifts
from marft.evaluation.guards.gains import SURE, earns_more
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """mean of the base's surprisal over the window − over the first one > threshold, for sure, of an agent whose
    messages others read, while accuracy, or else reward, is above that of the first window, for sure.
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
