"""Check for runs that learn nothing from rewards, for example because all attempts at a task earn the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from marft.common.callbacks import Callback
from marft.common.log import get_logger
from marft.rewards.groups import EQUAL_TOLERANCE

logger = get_logger(__name__)
CHECKED_STEPS = 3  # steps without a signal before the warning
NO_SIGNAL = (
    "the rewards gave no learning signal (the attempts at each task earned the same, none could be selected, or the "
    "step was undone)"
)
USUAL_CAUSES = (
    "Usual causes: the reward is constant (look at  marft show RUN); the tasks are too hard or too easy (use other "
    "tasks, or a reward with more levels); samples_per_task is 1, or the temperature is near 0; answers are cut off "
    "(raise max_new_tokens)"
)


def has_signal(metrics: Mapping[str, float | None]) -> bool:
    """Return whether the policies could learn from a step.

    Without a critic, equal rewards give advantage 0. A critic gives other advantages to equal rewards, but only noise.
    Losses beside the advantages (successful episodes, teammates' text) count as a signal.

    >>> has_signal({"zero_advantage_fraction": 1.0}), has_signal({"zero_advantage_fraction": 0.7})
    (False, True)
    >>> has_signal({"zero_advantage_fraction": 0.0, "critic/loss": 0.1, "reward_std": 0.0})
    False

    Args:
        metrics: metrics of the step; None or NaN for a metric without a value.
    """
    if metrics.get("reverted_steps"):
        return False
    if metrics.get("likelihood/successes") or any(name.endswith("teammate_weight") for name in metrics):
        return True
    if "critic/loss" not in metrics:
        return _number(metrics.get("zero_advantage_fraction", 0.0), 1.0) < 1.0
    own_rewards = [_number(value, 0.0) for name, value in metrics.items() if name.endswith("/own_reward")]
    return _number(metrics.get("reward_std", 1.0), 0.0) > EQUAL_TOLERANCE or any(own_rewards)


def _number(value: float | None, default: float) -> float:
    return default if value is None or math.isnan(value) else value


def had_learning_signal(steps: Iterable[Mapping[str, float | None]]) -> bool:
    """Return whether at least one step had a learning signal.

    Args:
        steps: metrics of the run's steps.
    """
    return any(map(has_signal, steps))


class LearningCheck(Callback):
    """Callback that logs a warning if the first steps of a run have no learning signal.

    Args:
        steps: metrics of the steps before; empty for a new run.
    """

    def __init__(self, steps: Sequence[Mapping[str, float | None]] = ()) -> None:
        self._steps, self._has_signal = len(steps), had_learning_signal(steps)

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Log the warning after the last checked step."""
        self._steps += 1
        self._has_signal = self._has_signal or has_signal(metrics)
        if self._steps == CHECKED_STEPS and not self._has_signal:
            logger.warning(f"nothing was learned in the first {step} steps: {NO_SIGNAL}. {USUAL_CAUSES}")
