"""Factory for the rollout source of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.common.types import Task
from marft.config.plugins import load_registered
from marft.config.pools import pools_of
from marft.rollout.ahead.gathering import Ahead, Gathering, Synchronous
from marft.rollout.ahead.reuse import Reusing
from marft.rollout.playing import Rollouts
from marft.runs.checkpoints import State


def open_gathering(rollouts: Rollouts, tasks: Sequence[Task], state: State, folder: Path | None) -> Gathering:
    """Open the rollout source for ``rollout.max_policy_lag``, ``rollout.reuse`` and population pools.

    Args:
        rollouts: runner for the episodes.
        tasks: training tasks.
        state: current progress of the run.
        folder: checkpoint folder, if the run resumes.

    Raises:
        ValueError: the saved groups cannot be read.
    """
    asked = rollouts.run.rollout
    if pools_of(rollouts.run):
        source: Gathering = load_registered("rollout_sources", "pool")(rollouts, tasks, folder)
        return source
    found: Gathering = Ahead(rollouts, tasks, state, folder) if asked.max_policy_lag else Synchronous(rollouts, tasks)
    return Reusing(found, rollouts, tasks, folder) if asked.reuse > 1 else found
