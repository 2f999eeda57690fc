"""Prompt optimization between training steps, with its state in checkpoints and a report in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from marft.common import atomic
from marft.common.lineage import Lineage
from marft.common.types import Episode
from marft.envs.tasks import tasks_of
from marft.runs.checkpoints import State
from marft.runs.folder import RunFolder
from marft.runs.stated import LINEAGE
from marft.trainer.seams import PromptOptimizer
from marft_lab.profiles.settings import ProfileSettings
from marft_lab.profiles.tuning import Instructs, Tuner, versions_told

FILE = "profiles.json"  # full lineage for readers; a run resumes from its checkpoints instead


@dataclass(frozen=True, slots=True)
class ProfileOptimizer(PromptOptimizer):
    """Prompt optimizer that plays a round of proposals at the steps given by the settings."""

    tuner: Tuner

    @classmethod
    def open(cls, rollouts: Instructs, settings: ProfileSettings, note: Callable[[str], None]) -> Self:
        """Open a run's optimizer.

        Raises:
            ValueError: no tasks to test instructions.
        """
        return cls(Tuner(rollouts, settings, tasks_of(rollouts.run.environment, settings.split), note))

    def restore(self, state: State, folder: RunFolder) -> State:
        """Return the state with the restored or initial lineage, and activate its instructions."""
        lineage = state.profiles or self.tuner.begun()
        self.tuner.rollouts.instruct(lineage.told())
        _write(folder, lineage)
        return replace(state, profiles=lineage)

    def step(self, state: State, episodes: Sequence[Episode], folder: RunFolder) -> tuple[State, dict[str, float]]:
        """Play a round if due; return the state with the new lineage, and metrics."""
        lineage, metrics = state.profiles, dict[str, float]()
        assert lineage is not None, "restore has begun it"
        if self.tuner.settings.due(state.step):
            lineage, metrics = self.tuner.round(lineage, state.step, episodes)
            _write(folder, lineage)
        return replace(state, profiles=lineage), metrics | versions_told(lineage)


def _write(folder: RunFolder, lineage: Lineage) -> None:
    atomic.write_file(folder.path / FILE, LINEAGE.dump_json(lineage, indent=1).decode() + "\n")
