"""Guards against an entropy surge, and against entropy loss without learning."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.effect_size import has_improved, performance_series
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert

MIN_ENTROPY = 1e-3  # nats; an agent that starts below has no entropy to lose


def check_increase(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with much higher entropy than at first.

    Condition: min entropy of the window > threshold · first entropy, for any agent.

    Learning lowers entropy, and an entropy bonus keeps it about constant. At three times the first value, the text of
    an agent is no longer the result of training.
    """
    for role in history.owners("agents", "entropy"):
        series = history.current_series(f"agents/{role}/entropy", settings.window + 1)
        if series is None:
            continue
        first, least = float(series.values[0]), float(series.values[-settings.window :].min())
        if first > MIN_ENTROPY and least > settings.entropy_spike * first:
            return GuardAlert(
                f"{role}: its entropy went from {first:.2g} to {least:.2g} nats a token or more, for "
                f"{settings.window} steps: its text is dissolving; lower algorithm.optimizer.learning_rate, or "
                "algorithm.entropy_coefficient where it is not 0",
                series.steps[-settings.window] - 1,
            )
    return None


def check_collapse(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent that lost its entropy while the team did not improve.

    Condition: max entropy of the window < threshold · first entropy, for any agent. In addition, accuracy (or else
    reward) must not exceed that of the first window by a standard error.

    A team that has learned its task needs no exploration. A team that has not, and has a fiftieth of its entropy left,
    will not find a solution.
    """
    window = settings.window
    performance = performance_series(history, 2 * window)
    if performance is None:
        return None
    name = performance[0]
    if has_improved(history, window):
        return None
    for role in history.owners("agents", "entropy"):
        series = history.current_series(f"agents/{role}/entropy", window + 1)
        if series is None:
            continue
        first, max_entropy = float(series.values[0]), float(series.values[-window:].max())
        if first > MIN_ENTROPY and max_entropy < settings.entropy_collapse * first:
            return GuardAlert(
                f"{role}: its entropy went from {first:.2g} to {max_entropy:.2g} nats a token, and {name} did not "
                "rise: it has stopped to try anything; raise algorithm.entropy_coefficient or its "
                "sampling.temperature, or lower algorithm.optimizer.learning_rate",
                series.steps[-window] - 1,
            )
    return None
