"""Learner backends: this process alone, or several ranks led by this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from marft.common.errors import RunError
from marft.common.types import Episode
from marft.config.run import RunSettings
from marft.models.pool import Models
from marft.runs.checkpoints import Record, State, restore
from marft.trainer.interfaces import Progress
from marft.trainer.keeping import Kept
from marft.trainer.learner import Learner
from marft.trainer.ledger import Told
from marft.trainer.starting import Start
from marft.trainer.undoing import Careful

if TYPE_CHECKING:
    from marft.trainer.ranks.company import Company


class RanksLostError(RunError):
    """Rank loss without repair within the step: sharded ranks, or a repeated loss."""

    times = 1  # number of losses in the step


class Learners(Protocol):
    """Training step backend, used in a ``with`` statement."""

    def join(self, models: Models) -> None:
        """Set the models to train."""

    @property
    def kept(self) -> Kept:
        """State for a checkpoint."""

    def load(self, start: Start) -> State:
        """Load a run's start → run state."""

    def restore(self, record: Record) -> None:
        """Restore a checkpoint from the run."""

    def noting(self, note: Callable[[str], None]) -> None:
        """Set the callback for warnings, for example about reverted steps."""

    def learn(self, episodes: Sequence[Episode], progress: Progress, told: Told = ...) -> dict[str, float]:
        """Run one training step on scored episodes → metrics."""

    def __enter__(self) -> Learners: ...

    def __exit__(self, *_: object) -> None: ...


class Solo:
    """Learner backend with a single process."""

    def __init__(self, run: RunSettings) -> None:
        self.run = run

    def join(self, models: Models) -> None:
        """Set the models to train."""
        self.models, self.kept = models, Learner(self.run, models)

    def load(self, start: Start) -> State:
        """Load a run's start → run state."""
        return start.load(self.models, self.kept)

    def restore(self, record: Record) -> None:
        """Restore a checkpoint from the run."""
        restore(record, self.models, self.kept)

    def noting(self, note: Callable[[str], None]) -> None:
        """Set the callback for warnings, for example about reverted steps."""
        self._careful = Careful(self.kept, note)

    def learn(self, episodes: Sequence[Episode], progress: Progress, told: Told = lambda _: None) -> dict[str, float]:
        """Run one training step on scored episodes → metrics."""
        return self._careful.learn(episodes, progress, told)

    def __enter__(self) -> Solo:
        return self

    def __exit__(self, *_: object) -> None:
        """No-op: nothing was started."""


def open_learners(run: RunSettings, lost: int = 0) -> Solo | Company:
    """Open the learner backend for ``training.ranks``.

    Args:
        run: recipe of the run.
        lost: number of losses of ranks since the last finished step.

    Raises:
        ValueError: there are not enough devices for the ranks.
        RunError: a rank ended during its start.
    """
    if run.training.ranks == 1:
        return Solo(run)
    from marft.trainer.ranks.company import Company  # imported late: a single rank does not need torch.distributed

    return Company(run, lost)
