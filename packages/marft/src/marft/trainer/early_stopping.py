"""Early stopping: end training when a metric no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import Field, PrivateAttr

from marft.common.errors import UserError
from marft.config.interfaces.callback import CallbackPlugin
from marft.config.settings import Count, NonEmptyString, NonNegative


class EarlyStopping(CallbackPlugin):
    """Callback that stops training after ``patience`` steps without improvement. Steps without the metric do not count.

    >>> stopping = EarlyStopping(metric="reward", patience=2)
    >>> for step, reward in enumerate([0.1, 0.3, 0.3, 0.2], start=1):
    ...     stopping.on_step_end(step, {"reward": reward})
    >>> stopping.wants_stop()
    True
    """

    metric: NonEmptyString = Field(default="validation_reward", description="metric to watch; larger is better")
    patience: Count = Field(default=10, description="maximum number of measured steps without improvement")
    min_delta: NonNegative = Field(default=0.0, description="minimum improvement")
    _best: float = PrivateAttr(default=-math.inf)
    _steps: int = PrivateAttr(default=0)  # steps without improvement

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        """Compare the metric of a step with the best value so far."""
        value = metrics.get(self.metric, math.nan)
        if not math.isfinite(value):
            return
        improved = self._best == -math.inf or value > self._best + self.min_delta
        self._best, self._steps = (value, 0) if improved else (self._best, self._steps + 1)

    def wants_stop(self) -> bool:
        """Return True after ``patience`` steps without improvement."""
        return self._steps >= self.patience

    def state_dict(self) -> Mapping[str, object]:
        """Return the best value and the number of steps since."""
        return {"best": self._best, "steps": self._steps} if self._best > -math.inf else {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the best value and the number of steps since."""
        best, steps = state.get("best"), state.get("steps")
        if not isinstance(best, int | float) or not isinstance(steps, int):
            raise UserError(f"early_stopping: the checkpoint holds {state}")
        self._best, self._steps = float(best), steps
