"""Learning instructions between training steps: what a run carries of it, and what lies in its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from marft import atomic
from marft.envs.tasks import tasks_of
from marft.lineage import Lineage
from marft.profiles.tuning import Instructs, Tuner, versions_told
from marft.runs.checkpoints import State
from marft.runs.folder import RunFolder
from marft.runs.stated import LINEAGE
from marft.types import Episode

FILE = "profiles.json"  # the whole lineage, for whoever reads it; a run goes on from its checkpoints


def open_tuner(rollouts: Instructs, note: Callable[[str], None]) -> Tuner | None:
    """What learns instructions; None where the recipe has none learned.

    Raises:
        ValueError: there are no tasks to judge on.
    """
    settings = rollouts.run.profiles
    if settings is None:
        return None
    return Tuner(rollouts, settings, tasks_of(rollouts.run.environment, settings.split), note)


def told_anew(tuner: Tuner | None, state: State, folder: RunFolder) -> State:
    """Tell agents what they are told where a run stands."""
    if tuner is None:
        return state
    lineage = state.profiles or tuner.begun()
    tuner.rollouts.instruct(lineage.told())
    _write(folder, lineage)
    return replace(state, profiles=lineage)


def advanced_profiles(
    tuner: Tuner, state: State, episodes: Sequence[Episode], folder: RunFolder
) -> tuple[State, dict[str, float]]:
    """Where a run stands after a step, and its metrics: a round later, where one is due.

    Args:
        episodes: the step's own.
    """
    lineage, metrics = state.profiles, dict[str, float]()
    assert lineage is not None, "it was begun"
    if tuner.settings.due(state.step):
        lineage, metrics = tuner.round(lineage, state.step, episodes)
        _write(folder, lineage)
    return replace(state, profiles=lineage), metrics | versions_told(lineage)


def _write(folder: RunFolder, lineage: Lineage) -> None:
    atomic.write_file(folder.path / FILE, LINEAGE.dump_json(lineage, indent=1).decode() + "\n")
