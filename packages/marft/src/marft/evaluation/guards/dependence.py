"""The answering agent's text stops depending on its inputs."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.gains import earns_more
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding

FAINT = 0.05  # nats a token: an agent that begins with less has never looked
WHAT = {"inputs": "the task and the messages", "messages": "the messages of its team"}


def look(history: History, settings: GuardSettings) -> Finding | None:
    """median of the window's dependence < threshold · median of the first one, of any answering agent; of messages
    only while accuracy, or else reward, is not above that of the first window.

    Of a few actions it scatters too much for a mean: one that still depends on everything hides the others. A text that
    ignores its team in favour of a leak still depends on the task; one that is always the same depends on nothing.
    """
    more = earns_more(history, settings.window)
    for name, what in WHAT.items():
        if name == "messages" and more:
            continue
        for role in history.owners("agents", f"dependence/{name}"):
            series = history.now(f"agents/{role}/dependence/{name}", 2 * settings.window)
            if series is None:
                continue
            first = float(np.median(series.values[: settings.window]))
            last = float(np.median(series.values[-settings.window :]))
            if first > FAINT and last < settings.dependence * first:
                return Finding(
                    f"{role}: what its text owes to {what} went from {first:.2f} to {last:.2f} nats a token: "
                    "it answers whatever it is asked or told; look at which term pays for that (`marft show RUN`), and "
                    "reward only what depends on the task",
                    series.steps[-settings.window] - 1,
                )
    return None
