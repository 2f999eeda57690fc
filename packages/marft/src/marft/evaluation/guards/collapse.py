"""Guards against collapse: steps that are too large, lost performance, and lost or exploding entropy and gradients."""

from __future__ import annotations

import math

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import GuardAlert, History, compute_effect_size, has_improved, performance_series

MIN_ENTROPY = 1e-3  # nats; an agent that starts below has no entropy to lose


def check_kl(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with a KL divergence above the threshold in every step of the window.

    Condition: min KL of the window > threshold, for any agent.

    Stable training stays below 0.01 nats per token. At ten times that value, clipping and importance weights have
    little effect.
    """
    for role, series in history.current_by_owner("agents", "kl", settings.window):
        least = float(series.values[-settings.window :].min())
        if least > settings.kl:
            return GuardAlert(
                f"{role}: each of the last {settings.window} steps moved it by {least:.2g} nats a token or more: it is "
                "learning from samples of policies that it no longer is; lower algorithm.optimizer.learning_rate",
                series.step_before_window(settings.window),
            )
    return None


def rollback_lr_factor(history: History, settings: GuardSettings) -> float:
    """Return the factor for all learning rates after a rollback.

    The factor is rollback_lr_factor · min(1, √(threshold / KL)), with the median KL over the window of the agent with
    the highest median. It is ``rollback_lr_factor`` if KL was not measured.

    The KL of a small step is proportional to the square of the learning rate. From the threshold on, the factor
    therefore brings a step down to a KL of rollback_lr_factor² · threshold, a thousandth of a nat.
    """
    kl_values = [history.series(f"agents/{role}/kl").values for role in history.owners("agents", "kl")]
    max_kl = max((float(np.median(values[-settings.window :])) for values in kl_values if len(values)), default=0.0)
    factor = settings.rollback_lr_factor
    return factor * math.sqrt(settings.kl / max_kl) if max_kl > settings.kl > 0 else factor


def check_reward(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a fall from the best window to the newest window.

    Condition: the newest window is below the best earlier window by more than the threshold, in standard deviations
    between episodes (``gains.gain``). 0.8 is a large effect (Cohen 1988), such as a fall from 90 % to 55 %.
    """
    window = settings.window
    performance = performance_series(history, 2 * window)
    if performance is None:
        return None
    name, series, deviations = performance
    means = series.means(window)
    best = int(np.argmax(means[: len(series) - 2 * window + 1]))
    if -compute_effect_size(series, deviations, best, window) <= settings.reward_drop:
        return None
    return GuardAlert(
        f"{name} fell from {means[best]:.2f} to {means[-1]:.2f}, over {window} steps each: what was learned is being "
        "lost; lower algorithm.optimizer.learning_rate, or go on from the best checkpoint (--init-from)",
        series.steps[best + window - 1],
    )


def check_entropy_spike(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with much higher entropy than at first.

    Condition: min entropy of the window > threshold · first entropy, for any agent.

    Learning lowers entropy, and an entropy bonus keeps it about constant. At three times the first value, the text of
    an agent is no longer the result of training.
    """
    for role, series in history.current_by_owner("agents", "entropy", settings.window + 1):
        first, least = float(series.values[0]), float(series.values[-settings.window :].min())
        if first > MIN_ENTROPY and least > settings.entropy_spike * first:
            return GuardAlert(
                f"{role}: its entropy went from {first:.2g} to {least:.2g} nats a token or more, for "
                f"{settings.window} steps: its text is dissolving; lower algorithm.optimizer.learning_rate, or "
                "algorithm.entropy_coefficient where it is not 0",
                series.step_before_window(settings.window),
            )
    return None


def check_entropy_collapse(history: History, settings: GuardSettings) -> GuardAlert | None:
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
    for role, series in history.current_by_owner("agents", "entropy", window + 1):
        first, max_entropy = float(series.values[0]), float(series.values[-window:].max())
        if first > MIN_ENTROPY and max_entropy < settings.entropy_collapse * first:
            return GuardAlert(
                f"{role}: its entropy went from {first:.2g} to {max_entropy:.2g} nats a token, and {name} did not "
                "rise: it has stopped to try anything; raise algorithm.entropy_coefficient or its "
                "sampling.temperature, or lower algorithm.optimizer.learning_rate",
                series.step_before_window(window),
            )
    return None


def check_gradient(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report a policy with exploding gradients.

    Condition: median gradient norm of the window > threshold · largest norm before the window, for any policy. Norms of
    0 do not count: there is no gradient if all attempts have the same advantage.

    Norms rise slowly as policies become more certain, and a single batch may be an outlier. Ten times the previous
    maximum for most of a window is neither. Two windows must precede the newest one, because a new adapter starts with
    small norms that soon rise.
    """
    window = settings.window
    for policy, series in history.current_by_owner("policies", "gradient_norm", 3 * window):
        if np.count_nonzero(series.values[:-window]) < 2 * window:
            continue
        largest, median = float(series.values[:-window].max()), float(np.median(series.values[-window:]))
        if median > settings.gradient * largest:
            return GuardAlert(
                f"policies.{policy}: its gradient norm went from {largest:.2g} at most to {median:.2g}, over {window} "
                "steps: it is leaving where its loss means anything; lower its learning_rate or "
                "algorithm.optimizer.max_gradient_norm",
                series.step_before_window(window),
            )
    return None
