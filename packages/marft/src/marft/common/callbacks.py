"""Callbacks that observe a run, for example the terminal or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.common.types import Episode


class Callback:
    """Base class for callbacks that observe training. Override the methods that you need; the defaults do nothing.

    All methods are called on the training thread, which waits for them. An exception in a callback ends the run;
    checkpoints saved before it stay complete.

    ::

        class Patient(marft.Callback):
            def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
                self.enough = metrics["reward"] > 0.9

            def wants_stop(self) -> bool:
                return getattr(self, "enough", False)
    """

    def on_train_start(self, completed_steps: int, steps: int) -> None:
        """Handle the start of training.

        Args:
            completed_steps: steps done before: 0 unless the run resumes.
            steps: step at which training ends.
        """

    def on_episode(self, episode: Episode) -> None:
        """Handle a finished episode, scored or failed."""

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Handle the end of a training step.

        Args:
            step: step number, counted from 1.
            metrics: metrics of the step, as written to ``metrics.jsonl`` (docs: metrics).
        """

    def on_guard(self, step: int, name: str, sentence: str) -> None:  # noqa: ARG002
        """Handle a guard that is raised now and was not raised in the step before.

        Called before :meth:`on_step_end`. The default passes the sentence to :meth:`on_note`.

        Args:
            step: step number, counted from 1.
            name: name of the guard; the step's metrics have ``guards/<name>`` = 1 as long as it stays raised.
            sentence: observation, meaning and remedy.
        """
        self.on_note(f"step {step}: {sentence}")

    def on_note(self, text: str) -> None:
        """Handle a message for the user: a sentence or two."""

    def wants_stop(self) -> bool:
        """Return True to stop training now.

        Called before the first step and after each step. A run that stops saves a checkpoint.
        """
        return False


class NullCallback(Callback):
    """Callback that ignores all events."""
