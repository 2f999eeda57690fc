"""Guard against longer or shorter texts without better results."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.effect_size import has_improved
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with much longer or shorter actions than at first, without better results.

    Condition: mean length of the newest window > threshold · mean of the first window, or < 1 / threshold of it, for
    any agent. In addition, accuracy (or else reward) must not exceed that of the first window.

    Useful reasoning also grows, but with accuracy. Twice the length without a gain indicates a reward that favors
    length. If success is unknown and reward rises, both cases look the same, and the guard reports nothing.
    """
    window = settings.window
    if has_improved(history, window):
        return None
    for role in history.owners("agents", "action_length"):
        series = history.current_series(f"agents/{role}/action_length", 2 * window)
        if series is None:
            continue
        means = series.means(window)
        first, last = float(means[0]), float(means[-1])
        if last > settings.length * first or first > settings.length * last:
            return GuardAlert(
                f"{role}: its actions went from {first:.1f} to {last:.1f} tokens, over {window} steps each, and no "
                "more is solved for it: look at what it writes (`marft show RUN`), and at which term pays for length; "
                "truncation, a length penalty or algorithm.reward may stop it",
                series.steps[-window] - 1,
            )
    return None
