"""Replay buffer for episodes of earlier steps (``rollout.reuse``).

The trained policy is newer than the policy that sampled a reused episode. Each step therefore computes new
log-probabilities for π_old. The loss is weighted with π_old/μ, where μ is the sampling policy
(``algorithm.sampler_correction``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from marft.common.types import Task
from marft.rollout.async_rollout.groups import Group, max_policy_lag
from marft.rollout.async_rollout.sources import EpisodeCallback, RolloutSource
from marft.rollout.async_rollout.storage import read_groups, write_groups
from marft.rollout.async_rollout.wrapper import RolloutSourceWrapper
from marft.rollout.rollout_batch import RolloutBatch
from marft.rollout.runner import RolloutRunner
from marft.runs.checkpoints import State

FILE_STEM = "again"  # stem of the files in a checkpoint


class ReplayBuffer(RolloutSourceWrapper):
    """Wrapper that adds the episodes of the previous ``reuse − 1`` steps to each batch.

    If credit compares attempts at the same task, newer attempts replace older attempts at that task. Attempts of
    different policies must not share a baseline.

    Args:
        source: source of new episodes.
        rollouts: runner for the episodes.
        tasks: training tasks.
        folder: checkpoint folder with the files of :meth:`save`, if the run resumes.

    Raises:
        ValueError: the saved episodes cannot be read.
    """

    def __init__(
        self, source: RolloutSource, rollouts: RolloutRunner, tasks: Sequence[Task], folder: Path | None = None
    ) -> None:
        super().__init__(source)
        self._rollouts = rollouts
        self._times, self._grouped = rollouts.run.rollout.reuse, bool(rollouts.run.algorithm.credit.comparison_group)
        saved = read_groups(folder, tasks, FILE_STEM) if folder else []
        self._steps = [(group.number, list(group.recorded)) for group in saved]  # newest first

    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Return the step's new episodes together with reused episodes."""
        batch = self._source.collect(state, on_done)
        if not batch.credit_inputs:
            return batch
        credit_inputs = list(batch.credit_inputs)
        for _, episodes in self._steps:
            newer = {episode.task.id for episode in credit_inputs} if self._grouped else set()
            credit_inputs += [episode for episode in episodes if episode.task.id not in newer]
        self._steps = [(state.step, batch.credit_inputs), *self._steps][: self._times - 1]
        trained = self._rollouts.run.trained_policies
        metrics = {
            "reused_episodes": float(len(credit_inputs) - len(batch.credit_inputs)),
            "policy_lag_max": float(max_policy_lag(credit_inputs, trained, self._rollouts.version)),
        }
        return replace(batch, credit_inputs=credit_inputs, metrics={**batch.metrics, **metrics})

    def on_rollback(self, state: State) -> None:
        """Discard the episodes of the abandoned policy."""
        self._steps.clear()
        super().on_rollback(state)

    def save(self, folder: Path) -> None:
        """Save the buffer and the wrapped source."""
        super().save(folder)
        write_groups(folder, [Group(step, [], episodes) for step, episodes in self._steps], FILE_STEM)
