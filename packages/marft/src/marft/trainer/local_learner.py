"""Learner backend in this process alone, and the choice between it and several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from marft.common.types import Episode
from marft.config.interfaces.schedule import Progress
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.runs.checkpoints import restore
from marft.runs.state import CheckpointRecord, State
from marft.trainer.learner import Learner
from marft.trainer.learner_backend import PlayAgain, refuse_new_episodes
from marft.trainer.learner_metrics import CreditCallback
from marft.trainer.non_finite_guard import NonFiniteGuard
from marft.trainer.run_init import RunInit

if TYPE_CHECKING:
    from marft.trainer.ranks.distributed_learner import DistributedLearner


class LocalLearner:
    """Learner backend with a single process."""

    def __init__(self, run: RunSettings) -> None:
        self.run = run

    def set_models(self, models: PolicyRegistry) -> None:
        """Set the models to train."""
        self.models, self.learner_state = models, Learner(self.run, models)
        self._guard = NonFiniteGuard(self.learner_state)

    def load(self, start: RunInit) -> State:
        """Load a run's start → run state."""
        state = start.load(self.models, self.learner_state)
        self._guard.resume(start.metrics_before(state.step))
        return state

    def restore(self, record: CheckpointRecord) -> None:
        """Restore a checkpoint from the run."""
        restore(record, self.models, self.learner_state)

    def learn(
        self,
        episodes: Sequence[Episode],
        progress: Progress,
        on_credit: CreditCallback = lambda _: None,
        play_again: PlayAgain = refuse_new_episodes,
    ) -> dict[str, float]:
        """Run one training step on scored episodes → metrics."""
        return self._guard.learn(episodes, progress, on_credit, play_again)

    def __enter__(self) -> LocalLearner:
        return self

    def __exit__(self, *_: object) -> None:
        """No-op: nothing was started."""


def open_learner(run: RunSettings, lost_count: int = 0) -> LocalLearner | DistributedLearner:
    """Open the learner backend for ``training.ranks``.

    Args:
        run: recipe of the run.
        lost_count: number of losses of ranks since the last finished step.

    Raises:
        ValueError: there are not enough devices for the ranks.
        RunError: a rank ended during its start.
    """
    if run.training.ranks == 1:
        return LocalLearner(run)
    # imported late: a single rank does not need torch.distributed
    from marft.trainer.ranks.distributed_learner import DistributedLearner

    return DistributedLearner(run, lost_count)
