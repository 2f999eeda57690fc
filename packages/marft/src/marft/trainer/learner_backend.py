"""Interface between the training loop and the learner, which runs in this process or in several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from marft.common.errors import RunError

if TYPE_CHECKING:
    from marft.common.types import Episode
    from marft.config.interfaces.schedule import Progress
    from marft.models.policy_registry import PolicyRegistry
    from marft.runs.state import CheckpointRecord, State
    from marft.trainer.learner_metrics import CreditCallback
    from marft.trainer.non_finite_guard import LearnerState
    from marft.trainer.run_init import RunInit


class RanksLostError(RunError):
    """Rank loss without repair within the step: sharded ranks, or a repeated loss."""

    times = 1  # number of losses in the step


PlayAgain = Callable[[], "Sequence[Episode]"]  # plays a step's tasks again with the published policies


def refuse_new_episodes() -> Sequence[Episode]:
    """Refuse to play a step's tasks again; the default where episodes are given.

    Raises:
        RunError: always.
    """
    raise RunError("a phase of algorithm.schedule asks for new episodes, and this command learns from those it has")


class LearnerBackend(Protocol):
    """Training step backend, used in a ``with`` statement."""

    def set_models(self, models: PolicyRegistry) -> None:
        """Set the models to train."""

    @property
    def learner_state(self) -> LearnerState:
        """State for a checkpoint."""

    def load(self, start: RunInit) -> State:
        """Load a run's start → run state."""

    def restore(self, record: CheckpointRecord) -> None:
        """Restore a checkpoint from the run."""

    def learn(
        self, episodes: Sequence[Episode], progress: Progress, on_credit: CreditCallback, play_again: PlayAgain
    ) -> dict[str, float]:
        """Run one training step on scored episodes → metrics.

        Args:
            episodes: scored episodes.
            progress: progress of training.
            on_credit: callback for the credit of each action.
            play_again: function that plays the step's tasks again with the policies as updated so far → scored
                episodes. A phase of the schedule may ask for it.
        """

    def __enter__(self) -> LearnerBackend: ...

    def __exit__(self, *_: object) -> None: ...
