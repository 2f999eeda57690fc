"""Guard against answers that no longer depend on their inputs."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.effect_size import has_improved
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert

MIN_DEPENDENCE = 0.05  # nats per token; an agent that starts below never depended on its inputs
SOURCES = {"inputs": "the task and the messages", "messages": "the messages of its team"}


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an answering agent with text that depends less on its inputs than at first.

    Condition: median dependence of the newest window < threshold · median of the first window. For dependence on
    messages, accuracy (or else reward) must also not exceed that of the first window.

    The mean over few actions varies too much: one action that still depends on everything would hide the others. A text
    that uses a leak instead of the messages still depends on the task. A text that is always the same depends on
    nothing.
    """
    has_gain = has_improved(history, settings.window)
    for name, source in SOURCES.items():
        if name == "messages" and has_gain:
            continue
        for role in history.owners("agents", f"dependence/{name}"):
            series = history.current_series(f"agents/{role}/dependence/{name}", 2 * settings.window)
            if series is None:
                continue
            first = float(np.median(series.values[: settings.window]))
            last = float(np.median(series.values[-settings.window :]))
            if first > MIN_DEPENDENCE and last < settings.dependence * first:
                return GuardAlert(
                    f"{role}: what its text owes to {source} went from {first:.2f} to {last:.2f} nats a token: "
                    "it answers whatever it is asked or told; look at which term pays for that (`marft show RUN`), and "
                    "reward only what depends on the task",
                    series.steps[-settings.window] - 1,
                )
    return None
