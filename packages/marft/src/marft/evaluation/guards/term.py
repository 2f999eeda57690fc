"""Guard against reward hacking: a reward term rises while success does not."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.effect_size import MIN_STANDARD_ERRORS, has_better_accuracy
from marft.evaluation.guards.history import TERM_PREFIX, History
from marft.evaluation.guards.interface import GuardAlert


def check(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a reward term that rises without a gain in accuracy.

    Condition: mean of the term over the newest window − mean over the first window > threshold · standard deviation of
    the first window's reward, and > ``MIN_STANDARD_ERRORS`` standard errors. In addition, accuracy must be known and
    must not exceed that of the first window.

    Half a standard deviation is a medium effect (Cohen 1988), which learning follows.
    """
    window = settings.window
    deviations = history.series("reward_std").values[:window]
    if not len(deviations) or has_better_accuracy(history, window) is not False:
        return None
    deviation = float(np.sqrt(np.mean(deviations**2)))
    for term in history.terms():
        series = history.current_series(term, 2 * window)
        if series is None:
            continue
        means = series.means(window)
        gained = float(means[-1] - means[0])
        noise_limit = MIN_STANDARD_ERRORS * series.estimate_noise() * (2.0 / window) ** 0.5
        if gained > max(settings.term * deviation, noise_limit):
            return GuardAlert(
                f"{_describe_term(term)} went from {means[0]:.2g} to {means[-1]:.2g} while no more is solved: the team "
                "earns by it without solving anything; look at episodes that it pays most (`marft show RUN`), and "
                "lower its weight or close its loophole",
                series.steps[-window] - 1,
            )
    return None


def _describe_term(term: str) -> str:
    owner, _, name = term.rpartition(TERM_PREFIX)
    return f"reward term {name!r}" + (f" of {owner.strip('/').removeprefix('agents/')}" if owner else "")
