"""Guards against a reward that rises for the wrong reasons: hacked terms, moved work, overfitting and forgetting."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import (
    MIN_STANDARD_ERRORS,
    TERM_PREFIX,
    GuardAlert,
    History,
    Series,
    compute_effect_size,
    find_drifts,
    has_better_accuracy,
)


def check_term(history: History, settings: GuardSettings) -> GuardAlert | None:
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
    for term in history.reward_term_names():
        series = history.current_series(term, 2 * window)
        if series is None:
            continue
        means = series.means(window)
        gained = float(means[-1] - means[0])
        if gained > max(settings.term * deviation, series.noise_limit(MIN_STANDARD_ERRORS, window)):
            return GuardAlert(
                f"{_describe_term(term)} went from {means[0]:.2g} to {means[-1]:.2g} while no more is solved: the team "
                "earns by it without solving anything; look at episodes that it pays most (`marft show RUN`), and "
                "lower its weight or close its loophole",
                series.step_before_window(window),
            )
    return None


def _describe_term(term: str) -> str:
    owner, _, name = term.rpartition(TERM_PREFIX)
    return f"reward term {name!r}" + (f" of {owner.strip('/').removeprefix('agents/')}" if owner else "")


def check_work(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent without a reward term that writes more of the team's tokens than at first.

    Condition: share of the team's own tokens over the newest window − share over the first window > threshold,
    significantly, for an agent without a reward term. In addition, another agent must have a reward term, and accuracy
    must be known and must not exceed that of the first window.
    """
    rewarded_agents = history.rewarded_agents()
    if not rewarded_agents or has_better_accuracy(history, settings.window) is not False:
        return None
    for drift in find_drifts(history, "token_share", settings.window):
        if drift.owner not in rewarded_agents and drift.increase > settings.work:
            return GuardAlert(
                f"{drift.owner}: {drift.last:.0%} of what the team writes is its own, and {drift.first:.0%} was at "
                "first, and no more is solved: work moves to where no term looks; let the terms of "
                f"{', '.join(sorted(rewarded_agents))} look at {drift.owner} too, or at the team",
                drift.last_good_step,
            )
    return None


def check_validation(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a fall in validation results during a rise in training reward.

    Condition: the two newest validations are both below the best one by more than threshold · standard deviation
    between episodes. In addition, the training reward must exceed that at the best validation (``gains.gain`` > 0).

    Half a standard deviation is a fall from 90 % to 73 %. For a hundred tasks, that is 3.5 standard errors, twice.
    """
    window = settings.window
    name = next((it for it in ("validation_accuracy", "validation_reward") if len(history.series(it)) > 2), "")
    reward, deviations = history.current_series("reward", 2 * window), history.series("reward_std").values
    if not name or reward is None or len(deviations) != len(reward):
        return None
    validation = history.series(name)
    best = int(np.argmax(validation.values[:-2]))
    highest, newest = float(validation.values[best]), float(validation.values[-2:].max())
    before = max(0, bisect_right(reward.steps, validation.steps[best]) - window)
    if before > len(reward) - 2 * window or compute_effect_size(reward, deviations, before, window) <= 0:
        return None
    deviation = _validation_deviation(name, validation, deviations, before, window)
    if highest - newest <= settings.validation_drop * deviation:
        return None
    return GuardAlert(
        f"{name} fell from {highest:.2f} to {newest:.2f} or less while the reward in training rose: what is learned "
        "does not hold on other tasks, or is no solution; look at what earns (`marft show RUN`), train on more tasks, "
        "or stop at the best checkpoint",
        validation.steps[best],
    )


def _validation_deviation(name: str, validation: Series, deviations: np.ndarray, before: int, window: int) -> float:
    """Return the standard deviation between episodes.

    For accuracy it follows from the validation values. For reward it is that of the training reward at the best
    validation.
    """
    if name == "validation_accuracy":
        values = validation.values
        return float(np.sqrt(np.mean([p * (1 - p) for p in (values[:-2].max(), values[-2:].max())])))
    return float(np.sqrt(np.mean(deviations[before : before + window] ** 2)))


def check_capability(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a policy with a higher loss on the held-out text than at first.

    Condition: newest loss > (1 + threshold) · first loss, for any policy. The loss is measured on the same tokens each
    time, so a single value is enough.
    """
    for policy in history.owners("policies", "held_out_loss"):
        series = history.series(f"policies/{policy}/held_out_loss")
        if len(series) < 2:  # a run that resumes from its beginning measures the loss again
            continue
        first, last = float(series.values[0]), float(series.values[-1])
        if last > (1.0 + settings.capability) * first:
            return GuardAlert(
                f"policies.{policy}: its loss on the held-out text went from {first:.2f} to {last:.2f} nats a token: "
                "it forgets what the task does not ask for; lower its learning_rate, hold it to its base "
                "(algorithm.kl.coefficient), or stop at an earlier checkpoint",
                series.steps[-2],
            )
    return None
