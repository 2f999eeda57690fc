"""Factory for the rollout source of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.common.types import Task
from marft.config.opponent_pools import opponent_pools
from marft.config.plugins import load_registered
from marft.rollout.async_rollout.replay_buffer import ReplayBuffer
from marft.rollout.async_rollout.sources import AsyncRolloutSource, RolloutSource, SyncRolloutSource
from marft.rollout.runner import RolloutRunner
from marft.runs.checkpoints import State


def open_source(rollouts: RolloutRunner, tasks: Sequence[Task], state: State, folder: Path | None) -> RolloutSource:
    """Open the rollout source for ``rollout.max_policy_lag``, ``rollout.reuse`` and population pools.

    Args:
        rollouts: runner for the episodes.
        tasks: training tasks.
        state: current progress of the run.
        folder: checkpoint folder, if the run resumes.

    Raises:
        ValueError: the saved groups cannot be read.
    """
    settings = rollouts.run.rollout
    if opponent_pools(rollouts.run):
        source: RolloutSource = load_registered("rollout_sources", "pool")(rollouts, tasks, folder)
        return source
    base_source: RolloutSource = (
        AsyncRolloutSource(rollouts, tasks, state, folder)
        if settings.max_policy_lag
        else SyncRolloutSource(rollouts, tasks)
    )
    return ReplayBuffer(base_source, rollouts, tasks, folder) if settings.reuse > 1 else base_source
