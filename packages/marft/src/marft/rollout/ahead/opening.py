"""How a recipe has what its steps learn from gathered."""

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
    """Open the source of a step's episodes that ``rollout.max_policy_lag``, ``rollout.reuse`` and pools ask for.

    Args:
        folder: the checkpoint that the run goes on from.

    Raises:
        ValueError: what was played before cannot be read.
    """
    asked = rollouts.run.rollout
    if pools_of(rollouts.run):
        source: Gathering = load_registered("rollout_sources", "pool")(rollouts, tasks, folder)
        return source
    found: Gathering = Ahead(rollouts, tasks, state, folder) if asked.max_policy_lag else Synchronous(rollouts, tasks)
    return Reusing(found, rollouts, tasks, folder) if asked.reuse > 1 else found
