"""Learning instructions between training steps: what a run carries of it, and what lies in its folder."""

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

FILE = "profiles.json"  # the whole lineage, for whoever reads it; a run goes on from its checkpoints


@dataclass(frozen=True, slots=True)
class ProfileOptimizer(PromptOptimizer):
    """Plays a round of proposals whenever the settings say that one is due."""

    tuner: Tuner

    @classmethod
    def open(cls, rollouts: Instructs, settings: ProfileSettings, note: Callable[[str], None]) -> Self:
        """
        Raises:
            ValueError: there are no tasks to judge instructions on.
        """
        return cls(Tuner(rollouts, settings, tasks_of(rollouts.run.environment, settings.split), note))

    def restore(self, state: State, folder: RunFolder) -> State:
        lineage = state.profiles or self.tuner.begun()
        self.tuner.rollouts.instruct(lineage.told())
        _write(folder, lineage)
        return replace(state, profiles=lineage)

    def step(self, state: State, episodes: Sequence[Episode], folder: RunFolder) -> tuple[State, dict[str, float]]:
        lineage, metrics = state.profiles, dict[str, float]()
        assert lineage is not None, "restore has begun it"
        if self.tuner.settings.due(state.step):
            lineage, metrics = self.tuner.round(lineage, state.step, episodes)
            _write(folder, lineage)
        return replace(state, profiles=lineage), metrics | versions_told(lineage)


def _write(folder: RunFolder, lineage: Lineage) -> None:
    atomic.write_file(folder.path / FILE, LINEAGE.dump_json(lineage, indent=1).decode() + "\n")
