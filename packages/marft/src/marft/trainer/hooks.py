"""Hooks for recipe sections in training.

The training loop calls each section of a recipe that derives from :class:`TrainingSection`, in the recipe's order. This
module does not import torch, because sections are loaded with the recipe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marft.config.sections import Section

if TYPE_CHECKING:
    from pathlib import Path

    from marft.common.callbacks import Callback
    from marft.common.types import Episode
    from marft.config.run import RunSettings
    from marft.rollout.async_rollout.sources import RolloutSource
    from marft.rollout.runner import RolloutRunner
    from marft.runs.run_folder import RunFolder
    from marft.runs.state import State


class PromptOptimizer(ABC):
    """Optimizer for agents' instructions between training steps; its state is ``State.prompts``."""

    @abstractmethod
    def restore(self, state: State, folder: RunFolder) -> State:
        """Restore instructions from a state, or the initial instructions, and return the updated state.

        The loop calls this method at the start of a run and after a rollback.
        """

    @abstractmethod
    def step(self, state: State, episodes: Sequence[Episode], folder: RunFolder) -> tuple[State, dict[str, float]]:
        """Update instructions after a training step if due → new state, metrics.

        Args:
            state: state after the training step.
            episodes: episodes of the step.
            folder: folder of the run.
        """


class TrainingSection(Section):
    """Base for recipe sections in training; every method is optional."""

    def wrap_source(self, source: RolloutSource, rollouts: RolloutRunner, folder: Path | None) -> RolloutSource:  # noqa: ARG002
        """Return the rollout source, optionally wrapped by the section.

        Args:
            source: rollout source of the run.
            rollouts: runner for the episodes.
            folder: checkpoint to resume from; None for a new run.

        Raises:
            ValueError: the section's part of the checkpoint cannot be read.
        """
        return source

    def prompt_optimizer(self, rollouts: RolloutRunner) -> PromptOptimizer | None:  # noqa: ARG002
        """Return the section's prompt optimizer; None by default.

        Args:
            rollouts: runner for the episodes.

        Raises:
            ValueError: no tasks are available to evaluate instructions.
        """
        return None

    def callbacks(self, run: RunSettings, folder: RunFolder) -> Sequence[Callback]:  # noqa: ARG002
        """Return the section's callbacks; none by default. Their state is not saved in checkpoints.

        Args:
            run: recipe of the run.
            folder: folder of the run.

        Raises:
            ValueError: a package is missing, or a setting of the machine is invalid.
        """
        return ()
