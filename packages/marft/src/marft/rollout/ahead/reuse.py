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
from marft.rollout.ahead.around import Around
from marft.rollout.ahead.gathering import Gathering, OnDone
from marft.rollout.ahead.groups import Group, oldest
from marft.rollout.ahead.keeping import read_groups, write_groups
from marft.rollout.collection import Collection
from marft.rollout.playing import Rollouts
from marft.runs.checkpoints import State

NAME = "again"  # stem of the files in a checkpoint


class Reusing(Around):
    """Wrapper that adds the episodes of the previous ``reuse − 1`` steps to each batch.

    If credit compares attempts at the same task, newer attempts replace older attempts at that task. Attempts of
    different policies must not share a baseline.

    Args:
        gathering: source of new episodes.
        rollouts: runner for the episodes.
        tasks: training tasks.
        folder: checkpoint folder with the files of :meth:`write`, if the run resumes.

    Raises:
        ValueError: the saved episodes cannot be read.
    """

    def __init__(
        self, gathering: Gathering, rollouts: Rollouts, tasks: Sequence[Task], folder: Path | None = None
    ) -> None:
        super().__init__(gathering)
        self._rollouts = rollouts
        self._times, self._grouped = rollouts.run.rollout.reuse, bool(rollouts.run.algorithm.credit.grouped_by)
        kept = read_groups(folder, tasks, NAME) if folder else []
        self._steps = [(group.number, list(group.recorded)) for group in kept]  # newest first

    def collect(self, state: State, on_done: OnDone) -> Collection:
        """Return the step's new episodes together with reused episodes."""
        fresh = self._gathering.collect(state, on_done)
        if not fresh.credit_inputs:
            return fresh
        learned = list(fresh.credit_inputs)
        for _, episodes in self._steps:
            newer = {episode.task.id for episode in learned} if self._grouped else set()
            learned += [episode for episode in episodes if episode.task.id not in newer]
        self._steps = [(state.step, fresh.credit_inputs), *self._steps][: self._times - 1]
        trained = self._rollouts.run.trained_policies
        metrics = {
            "reused_episodes": float(len(learned) - len(fresh.credit_inputs)),
            "policy_lag_max": float(oldest(learned, trained, self._rollouts.version)),
        }
        return replace(fresh, credit_inputs=learned, metrics={**fresh.metrics, **metrics})

    def abandon(self, state: State) -> None:
        """Discard the episodes of the abandoned policy."""
        self._steps.clear()
        super().abandon(state)

    def write(self, folder: Path) -> None:
        """Save the buffer and the wrapped source."""
        super().write(folder)
        write_groups(folder, [Group(step, [], episodes) for step, episodes in self._steps], NAME)
