"""Check for runs that learn nothing, because the attempts at each task earn the same reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from marft.common.callbacks import Callback
from marft.common.log import get_logger

logger = get_logger(__name__)
CHECKED_STEPS = 3  # steps without a difference before the warning
NO_DIFFERENCE = "the attempts at each task earned the same reward"
USUAL_CAUSES = (
    "usual causes: the reward is constant (look at  marft show RUN); the tasks are too hard or too easy (use other "
    "tasks, or a reward with more levels); samples_per_task is 1, or the temperature is near 0; answers are cut off "
    "(raise max_new_tokens)"
)


def has_signal(metrics: Mapping[str, float]) -> bool:
    """Return whether the rewards of a step differed, so that the policies can learn from it.

    Without a critic, equal rewards give advantage 0. A critic gives other advantages to equal rewards, but only noise.

    >>> has_signal({"zero_advantage_fraction": 1.0}), has_signal({"zero_advantage_fraction": 0.7})
    (False, True)
    >>> has_signal({"zero_advantage_fraction": 0.0, "critic/loss": 0.1, "reward_std": 0.0})
    False
    """
    if "critic/loss" not in metrics:
        return metrics.get("zero_advantage_fraction", 0.0) < 1.0
    own_rewards = [value for name, value in metrics.items() if name.endswith("/own_reward")]
    return metrics.get("reward_std", 1.0) != 0.0 or any(own_rewards)


def had_learning_signal(steps: Iterable[Mapping[str, float]]) -> bool:
    """Return whether at least one step had a learning signal.

    Args:
        steps: metrics of the run's steps.
    """
    return any(map(has_signal, steps))


class LearningCheck(Callback):
    """Callback that logs a warning if the first steps of a run have no learning signal."""

    def __init__(self) -> None:
        self._steps, self._has_signal = 0, False

    def on_train_start(self, completed_steps: int, steps: int) -> None:  # noqa: ARG002
        """Skip the check for a resumed run."""
        self._has_signal = completed_steps > 0

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Log the warning after the last checked step."""
        self._steps += 1
        self._has_signal = self._has_signal or has_signal(metrics)
        if self._steps == CHECKED_STEPS and not self._has_signal:
            logger.warning(f"nothing was learned in the first {step} steps: {NO_DIFFERENCE}. {USUAL_CAUSES}")
