"""How a recipe has what its steps learn from gathered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.ahead.gathering import Ahead, Gathering, Synchronous
from marft.ahead.imagining import Imagining
from marft.ahead.reuse import Reusing
from marft.config.pools import pools_of
from marft.league.gathering import Against, PlaysPools
from marft.rollouts import LocalRollouts
from marft.runs.checkpoints import State
from marft.types import Task


def open_gathering(rollouts: PlaysPools, tasks: Sequence[Task], state: State, folder: Path | None) -> Gathering:
    """As ``rollout.max_policy_lag``, ``rollout.reuse`` and ``[dyna]`` say.

    Args:
        folder: the checkpoint that the run goes on from.

    Raises:
        ValueError: what was played before cannot be read.
    """
    asked = rollouts.run.rollout
    if pools_of(rollouts.run):
        return Against(rollouts, tasks, folder)
    found: Gathering = Ahead(rollouts, tasks, state, folder) if asked.max_policy_lag else Synchronous(rollouts, tasks)
    found = Reusing(found, rollouts, tasks, folder) if asked.reuse > 1 else found
    if rollouts.run.dyna is None:
        return found
    assert isinstance(rollouts, LocalRollouts), "worker processes are refused when the recipe is read"
    return Imagining(found, rollouts, folder)
