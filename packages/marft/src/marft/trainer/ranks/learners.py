"""Who learns in a run: this process alone, or several ranks, of which it is the first."""

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
    """Ranks were lost, and what they held parts of with them; or again, while they were started again."""

    times = 1  # that it came to that in the step


class Learners(Protocol):
    """Whoever makes a run's training steps. Close it, or use it as a context manager."""

    def join(self, models: Models) -> None:
        """Learn with these models from here on."""

    @property
    def kept(self) -> Kept:
        """What a checkpoint holds of them."""

    def load(self, start: Start) -> State:
        """Begin with what a run starts from → where the run stands."""

    def restore(self, record: Record) -> None:
        """Go back to a checkpoint of the run."""

    def noting(self, note: Callable[[str], None]) -> None:
        """Have somebody told of steps that are undone, from here on."""

    def learn(self, episodes: Sequence[Episode], progress: Progress, told: Told = ...) -> dict[str, float]:
        """One training step on scored episodes → its metrics."""

    def __enter__(self) -> Learners: ...

    def __exit__(self, *_: object) -> None: ...


class Solo:
    """This process alone."""

    def __init__(self, run: RunSettings) -> None:
        self.run = run

    def join(self, models: Models) -> None:
        self.models, self.kept = models, Learner(self.run, models)

    def load(self, start: Start) -> State:
        return start.load(self.models, self.kept)

    def restore(self, record: Record) -> None:
        restore(record, self.models, self.kept)

    def noting(self, note: Callable[[str], None]) -> None:
        self._careful = Careful(self.kept, note)

    def learn(self, episodes: Sequence[Episode], progress: Progress, told: Told = lambda _: None) -> dict[str, float]:
        return self._careful.learn(episodes, progress, told)

    def __enter__(self) -> Solo:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was started."""


def open_learners(run: RunSettings, lost: int = 0) -> Solo | Company:
    """Whoever learns in a run, as ``training.ranks`` says.

    Args:
        lost: how often ranks were lost with what they held, since the last step that was made.

    Raises:
        ValueError: it asks for more than is here.
    """
    if run.training.ranks == 1:
        return Solo(run)
    from marft.trainer.ranks.company import Company  # processes and torch.distributed, which one alone does without

    return Company(run, lost)
