"""Learning from episodes again, in the steps after their own (``rollout.reuse``).

The policy that learns from them is a newer one than the one that acted: every step scores them anew for π_old, and
weighs their loss with π_old/μ, μ what they were sampled with (``algorithm.sampler_correction``).
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

NAME = "again"  # of what is written


class Reusing(Around):
    """Adds to what a step gathers the episodes of the ``reuse − 1`` steps before it.

    Where attempts at a task are compared with each other, an older attempt makes way for newer ones at its task: those
    of other policies are no measure for each other.

    Args:
        folder: what :meth:`write` has written, where the run goes on.

    Raises:
        ValueError: what was written cannot be read.
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
        """The step's own episodes, and older ones."""
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
        """What the abandoned policy has played is learned from no more."""
        self._steps.clear()
        super().abandon(state)

    def write(self, folder: Path) -> None:
        super().write(folder)
        write_groups(folder, [Group(step, [], episodes) for step, episodes in self._steps], NAME)
