"""Whoever watches a run: the terminal, a notebook, nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.common.types import Episode


class Observer:
    """What training tells whoever watches it. Derive from it and write those methods that you want; the others do
    nothing.

    All of them are called on the thread that trains, which waits for them. What one raises ends the run; what was saved
    before is whole.

    ::

        class Patient(marft.Observer):
            def step(self, step: int, metrics: dict[str, float]) -> None:
                self.enough = metrics["reward"] > 0.9

            def wants_stop(self) -> bool:
                return getattr(self, "enough", False)
    """

    def began(self, done: int, steps: int) -> None:
        """Training begins.

        Args:
            done: steps that the run has done before: 0, but for one that goes on.
            steps: at which it ends.
        """

    def episode(self, episode: Episode) -> None:
        """An episode was played and scored, or could not be."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """A step is over.

        Args:
            step: counted from 1.
            metrics: what is written to ``metrics.jsonl`` (docs: metrics).
        """

    def guard(self, step: int, name: str, sentence: str) -> None:  # noqa: ARG002
        """A guard is raised, and was not in the step before. Told before :meth:`step`; without a method of its own it
        is a note.

        Args:
            name: of the guard; the step's metrics have ``guards/<name>`` = 1 as long as it stays raised.
            sentence: what it saw, what that means, and what to change.
        """
        self.note(f"step {step}: {sentence}")

    def note(self, text: str) -> None:
        """Something that whoever trains should know: a sentence or two."""

    def wants_stop(self) -> bool:
        """Whether to stop now. Asked before the first step and after each one; a run that stops saves a checkpoint."""
        return False


class Silent(Observer):
    """Nobody watches."""
