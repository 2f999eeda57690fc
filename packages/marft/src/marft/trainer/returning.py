"""Rollback after a collapse: restore the last stable checkpoint and continue with lower learning rates.

Step numbers, tasks and random streams continue, so the run does not repeat the collapse. The log keeps the collapsed
steps. Weights, optimizers, critic, and the state of credit and schedule come from the checkpoint.
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
    """Rollback after a collapse, up to the maximum number in the recipe.

    With ``guards.on_collapse`` other than "return" all methods are no-ops, except that learning rates are set.

    Args:
        run: recipe of the run.
        checkpoints: checkpoints of the run.
        models: models of the run.
        learner: state to restore.
        restore: function that restores a checkpoint in all ranks.
        note: callback for messages, for example about an impossible rollback.
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
        """Set the learning rates, and save an initial checkpoint in a new run as a rollback target."""
        self._set_rates(state)
        if self._on and not self._checkpoints.steps():
            self._checkpoints.save(state, self._run, self._models, self._learner, Mark.of(b""))

    def target(self, state: State, well: int | None) -> Record | None:
        """Return the rollback target: the newest intact checkpoint at step ``well`` or before.

        The target is None without a collapse, with rollback disabled, after the maximum number of rollbacks, or without
        such a checkpoint.

        Args:
            state: current state of the run.
            well: last step before a collapse; None without a collapse.
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
        """Restore a checkpoint in all learning parts → new state of the run.

        Later checkpoints are deleted and cannot remain the best checkpoint. Scores from a collapse, for example from a
        hacked reward, are not comparable.

        Args:
            state: current state of the run.
            record: checkpoint to restore.
            cooled: factor for the learning rates.
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
        """Return the best checkpoint known at ``record``; none if deleted since."""
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
