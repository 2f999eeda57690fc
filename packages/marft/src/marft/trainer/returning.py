"""After a collapse a run goes back to its last stable checkpoint, and on from there with lower learning rates.

It is a step like any other: steps, tasks and random streams go on, so that what comes is not what collapsed, and the
log keeps what was. Weights, optimizers, critic and what credit and schedule carry are those of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from marft.config.run import RunSettings
from marft.models.pool import Models
from marft.rollout.curriculum import taken_back
from marft.runs.checkpoints import Checkpoints, Record, State, read_record
from marft.runs.folder import step_of
from marft.runs.log import Mark
from marft.runs.removing import remove_checkpoint
from marft.trainer.keeping import Kept


class Returning:
    """Goes back, as often as the recipe lets it; where it does not, nothing here does anything.

    Args:
        restore: puts everything that learns back to a checkpoint.
        note: told where it would go back and may not.
    """

    def __init__(
        self, run: RunSettings, checkpoints: Checkpoints, models: Models, learner: Kept,
        restore: Callable[[Record], None], note: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._run, self._checkpoints, self._models, self._learner = run, checkpoints, models, learner
        self._restore = restore
        self._note, self._refused = note, False
        self._on = run.guards.on_collapse == "return"

    def begin(self, state: State) -> None:
        """Take up where the run stands; one that has not begun keeps what it begins with, to go back to."""
        self._set_rates(state)
        if self._on and not self._checkpoints.steps():
            self._checkpoints.save(state, self._run, self._models, self._learner, Mark.of(b""))

    def target(self, state: State, well: int | None) -> Record | None:
        """The checkpoint to go back to: the newest whole one of step ``well`` or before.

        Args:
            well: the last step before a collapse; None where there is none.
        """
        if well is None or not self._on:
            return None
        found = self._newest(state.step, well) if state.returns < self._run.guards.returns else None
        if found is None and not self._refused:
            self._refused = True
            self._note(
                f"step {state.step}: the run has gone back {state.returns} times (guards.returns = "
                f"{self._run.guards.returns}) or has no checkpoint of step {well} or before; it goes on as it is"
            )
        return found

    def go_back(self, state: State, record: Record, cooled: float) -> State:
        """Put everything that learns back → where the run stands. Checkpoints in between go, and none of them stays the
        best one: what a collapse earned, such as a gamed reward, is no measure for what comes.

        Args:
            cooled: what learning rates are multiplied by.
        """
        for path in self._checkpoints.steps():
            if record.state.step < step_of(path) <= state.step:
                remove_checkpoint(path)
        self._restore(record)
        state = replace(state, returns=state.returns + 1, cooled=state.cooled * cooled)
        if state.curriculum and record.state.curriculum:
            easier = taken_back(state.curriculum, record.state.curriculum, state.tasks_drawn)
            state = replace(state, curriculum=easier)
        if state.profiles:
            state = replace(state, profiles=state.profiles.back_to(record.state.profiles))
        if state.best_step > record.state.step:
            state = replace(state, **self._best_of(record))
        self._set_rates(state)
        return state

    def _best_of(self, record: Record) -> dict[str, Any]:
        """The best checkpoint as it was known then; none, where it has made way for one of those that are gone."""
        there = {step_of(path) for path in self._checkpoints.steps()}
        best = record.state if record.state.best_step in there else State()
        return {"best_step": best.best_step, "best_score": best.best_score, "best_by": best.best_by}

    def _newest(self, step: int, well: int) -> Record | None:
        for path in reversed(self._checkpoints.steps()):
            if step_of(path) <= well:
                try:
                    return read_record(path)
                except ValueError as error:
                    self._note(f"step {step}: passed over a checkpoint: {error}")
        return None

    def _set_rates(self, state: State) -> None:
        for name, optimizer in self._learner.optimizers.items():
            optimizer.learning_rate = self._run.learning_rate(name) * state.cooled
