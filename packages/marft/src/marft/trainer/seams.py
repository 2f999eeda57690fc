"""How a recipe section takes part in training.

The training loop asks each section of a recipe that derives from :class:`TrainingSection`, in the recipe's order.
Importing this module imports no torch, because sections are read with the recipe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from marft.config.sections import Section

if TYPE_CHECKING:
    from pathlib import Path

    from marft.common.observing import Observer
    from marft.common.types import Episode
    from marft.config.run import RunSettings
    from marft.rollout.ahead.gathering import Gathering
    from marft.rollout.playing import Rollouts
    from marft.runs.checkpoints import State
    from marft.runs.folder import RunFolder


class PromptOptimizer(ABC):
    """Changes the instructions of agents between training steps. Its state is ``State.profiles``."""

    @abstractmethod
    def restore(self, state: State, folder: RunFolder) -> State:
        """Give agents the instructions of a state, or the first ones, and return the state with them.

        The loop calls it when a run starts, and after a rollback.
        """

    @abstractmethod
    def step(self, state: State, episodes: Sequence[Episode], folder: RunFolder) -> tuple[State, dict[str, float]]:
        """Change instructions after a training step where it is time to → the state after it, and metrics.

        Args:
            episodes: those that the step played.
        """


class TrainingSection(Section):
    """Base of recipe sections that take part in training. Each method is optional."""

    def wrap_source(self, source: Gathering, rollouts: Rollouts, folder: Path | None) -> Gathering:  # noqa: ARG002
        """Return the source of a step's episodes with the section's own part around it.

        Args:
            folder: the checkpoint that the run resumes from.

        Raises:
            ValueError: the section's part of the checkpoint cannot be read.
        """
        return source

    def prompt_optimizer(self, rollouts: Rollouts, note: Callable[[str], None]) -> PromptOptimizer | None:  # noqa: ARG002
        """Return what changes instructions between steps; None where the section does not.

        Raises:
            ValueError: there are no tasks to judge instructions on.
        """
        return None

    def observe(
        self,
        observer: Observer,
        run: RunSettings,  # noqa: ARG002
        folder: RunFolder,  # noqa: ARG002
    ) -> AbstractContextManager[Observer]:
        """Return a context in which the run's observer is replaced by one that also reports to the section."""
        return nullcontext(observer)
