"""Rollback after a collapse: restore the last stable checkpoint and continue with lower learning rates.

Step numbers, tasks and random streams continue, so the run does not repeat the collapse. The log keeps the collapsed
steps. Weights, optimizers, critic, and the state of credit and schedule come from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from marft.common.log import get_logger
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.task_sampler import restore_curriculum
from marft.runs.checkpoints import CheckpointManager
from marft.runs.metrics_log import LogDigest
from marft.runs.run_files import remove_checkpoint
from marft.runs.run_folder import parse_step
from marft.runs.state import CheckpointRecord, State, read_record
from marft.trainer.non_finite_guard import LearnerState

logger = get_logger(__name__)


class Rollback:
    """Rollback after a collapse, up to the maximum number in the recipe.

    With ``guards.on_collapse`` other than "rollback" all methods are no-ops, except that learning rates are set.

    Args:
        run: recipe of the run.
        checkpoints: checkpoints of the run.
        models: models of the run.
        learner: state to restore.
        restore: function that restores a checkpoint in all ranks.
    """

    def __init__(
        self,
        run: RunSettings,
        checkpoints: CheckpointManager,
        models: PolicyRegistry,
        learner: LearnerState,
        restore: Callable[[CheckpointRecord], None],
    ) -> None:
        self._run, self._checkpoints, self._models, self._learner = run, checkpoints, models, learner
        self._restore, self._refused = restore, False
        self._is_enabled = run.guards.on_collapse == "rollback"

    def begin(self, state: State) -> None:
        """Set the learning rates, and save an initial checkpoint in a new run as a rollback target."""
        self._set_rates(state)
        if self._is_enabled and not self._checkpoints.steps():
            self._checkpoints.save(state, self._run, self._models, self._learner, LogDigest.from_content(b""))

    def target(self, state: State, stable_step: int | None) -> CheckpointRecord | None:
        """Return the rollback target: the newest intact checkpoint at step ``stable_step`` or before.

        The target is None without a collapse, with rollback disabled, after the maximum number of rollbacks, or without
        such a checkpoint.

        Args:
            state: current state of the run.
            stable_step: last step before a collapse; None without a collapse.
        """
        if stable_step is None or not self._is_enabled:
            return None
        may_roll_back = state.rollbacks < self._run.guards.max_rollbacks
        record = self._find_newest(state.step, stable_step) if may_roll_back else None
        if record is None and not self._refused:
            self._refused = True
            logger.warning(
                f"step {state.step}: the run has gone back {state.rollbacks} times (guards.max_rollbacks = "
                f"{self._run.guards.max_rollbacks}) or has no checkpoint of step {stable_step} or before; it goes on "
                "as it is"
            )
        return record

    def roll_back(self, state: State, record: CheckpointRecord, rate_factor: float) -> State:
        """Restore a checkpoint in all learning parts → new state of the run.

        Later checkpoints are deleted and cannot remain the best checkpoint. Scores from a collapse, for example from a
        hacked reward, are not comparable.

        Args:
            state: current state of the run.
            record: checkpoint to restore.
            rate_factor: factor for the learning rates.
        """
        for path in self._checkpoints.steps():
            if record.state.step < parse_step(path) <= state.step:
                remove_checkpoint(path)
        self._restore(record)
        rate_scale = state.learning_rate_scale * rate_factor
        state = replace(state, rollbacks=state.rollbacks + 1, learning_rate_scale=rate_scale)
        if state.curriculum and record.state.curriculum:
            curriculum = restore_curriculum(state.curriculum, record.state.curriculum, state.tasks_drawn)
            state = replace(state, curriculum=curriculum)
        if state.prompts:
            state = replace(state, prompts=state.prompts.roll_back(record.state.prompts))
        if state.best_step > record.state.step:
            state = replace(state, **self._find_best(record))
        self._set_rates(state)
        return state

    def _find_best(self, record: CheckpointRecord) -> dict[str, Any]:
        """Return the best checkpoint known at ``record``; none if deleted since."""
        saved_steps = {parse_step(path) for path in self._checkpoints.steps()}
        best = record.state if record.state.best_step in saved_steps else State()
        return {"best_step": best.best_step, "best_score": best.best_score, "best_by": best.best_by}

    def _find_newest(self, step: int, stable_step: int) -> CheckpointRecord | None:
        for path in reversed(self._checkpoints.steps()):
            if parse_step(path) <= stable_step:
                try:
                    return read_record(path)
                except ValueError as error:
                    logger.warning(f"step {step}: passed over a checkpoint: {error}")
        return None

    def _set_rates(self, state: State) -> None:
        for name, optimizer in self._learner.optimizers.items():
            optimizer.learning_rate = self._run.learning_rate(name) * state.learning_rate_scale
