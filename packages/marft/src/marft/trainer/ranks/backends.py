"""Learner backends: this process alone, or several ranks led by this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from marft.common.errors import RunError
from marft.common.types import Episode
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.runs.checkpoints import CheckpointRecord, State, restore
from marft.trainer.credit_log import CreditCallback
from marft.trainer.interfaces import Progress
from marft.trainer.learner import Learner
from marft.trainer.learner_state import LearnerState
from marft.trainer.non_finite_guard import NonFiniteGuard
from marft.trainer.run_init import RunInit

if TYPE_CHECKING:
    from marft.trainer.ranks.distributed_learner import DistributedLearner


class RanksLostError(RunError):
    """Rank loss without repair within the step: sharded ranks, or a repeated loss."""

    times = 1  # number of losses in the step


class LearnerBackend(Protocol):
    """Training step backend, used in a ``with`` statement."""

    def join(self, models: PolicyRegistry) -> None:
        """Set the models to train."""

    @property
    def learner_state(self) -> LearnerState:
        """State for a checkpoint."""

    def load(self, start: RunInit) -> State:
        """Load a run's start → run state."""

    def restore(self, record: CheckpointRecord) -> None:
        """Restore a checkpoint from the run."""

    def set_note_callback(self, note: Callable[[str], None]) -> None:
        """Set the callback for warnings, for example about reverted steps."""

    def learn(
        self, episodes: Sequence[Episode], progress: Progress, on_credit: CreditCallback = ...
    ) -> dict[str, float]:
        """Run one training step on scored episodes → metrics."""

    def __enter__(self) -> LearnerBackend: ...

    def __exit__(self, *_: object) -> None: ...


class LocalLearner:
    """Learner backend with a single process."""

    def __init__(self, run: RunSettings) -> None:
        self.run = run

    def join(self, models: PolicyRegistry) -> None:
        """Set the models to train."""
        self.models, self.learner_state = models, Learner(self.run, models)

    def load(self, start: RunInit) -> State:
        """Load a run's start → run state."""
        return start.load(self.models, self.learner_state)

    def restore(self, record: CheckpointRecord) -> None:
        """Restore a checkpoint from the run."""
        restore(record, self.models, self.learner_state)

    def set_note_callback(self, note: Callable[[str], None]) -> None:
        """Set the callback for warnings, for example about reverted steps."""
        self._guard = NonFiniteGuard(self.learner_state, note)

    def learn(
        self, episodes: Sequence[Episode], progress: Progress, on_credit: CreditCallback = lambda _: None
    ) -> dict[str, float]:
        """Run one training step on scored episodes → metrics."""
        return self._guard.learn(episodes, progress, on_credit)

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
