"""What an agent writes grows or shrinks, and it solves no more for it."""

from __future__ import annotations

from marft.config.guards import GuardSettings
from marft.evaluation.guards.gains import earns_more
from marft.evaluation.guards.history import History
from marft.evaluation.guards.interface import Finding


def look(history: History, settings: GuardSettings) -> Finding | None:
    """mean of the window's length > threshold · that of the first window, or < 1 / threshold of it, of any agent,
    while accuracy, or else reward, is not above that of the first window.

    Reasoning that pays for itself grows too, with accuracy; twice the length for nothing is what a reward pays that
    likes length. Where success is not known and reward rises, one looks like the other, and nothing is said.
    """
    window = settings.window
    if earns_more(history, window):
        return None
    for role in history.owners("agents", "action_length"):
        series = history.now(f"agents/{role}/action_length", 2 * window)
        if series is None:
            continue
        means = series.means(window)
        first, now = float(means[0]), float(means[-1])
        if now > settings.length * first or first > settings.length * now:
            return Finding(
                f"{role}: its actions went from {first:.1f} to {now:.1f} tokens, over {window} steps each, and no more "
                "is solved for it: look at what it writes (`marft show RUN`), and at which term pays for length; "
                "truncation, a length penalty or algorithm.reward may stop it",
                series.steps[-window] - 1,
            )
    return None
