"""Prompt optimization between training steps, with its state in checkpoints and a report in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from marft.common import atomic
from marft.common.prompt_history import PromptHistory
from marft.common.types import Episode
from marft.envs.tasks import read_tasks
from marft.runs.checkpoints import State
from marft.runs.run_folder import RunFolder
from marft.runs.state_schema import LINEAGE_ADAPTER
from marft.trainer.hooks import PromptOptimizer
from marft_lab.prompt_optimization.search import PromptRollouts, PromptSearch, version_metrics
from marft_lab.prompt_optimization.settings import PromptOptimizerSettings

FILE_NAME = "profiles.json"  # full lineage for readers; a run resumes from its checkpoints instead


@dataclass(frozen=True, slots=True)
class ScheduledPromptOptimizer(PromptOptimizer):
    """Prompt optimizer that plays a round of proposals at the steps given by the settings."""

    search: PromptSearch

    @classmethod
    def open(cls, rollouts: PromptRollouts, settings: PromptOptimizerSettings, note: Callable[[str], None]) -> Self:
        """Open a run's optimizer.

        Raises:
            ValueError: no tasks to test instructions.
        """
        return cls(PromptSearch(rollouts, settings, read_tasks(rollouts.run.environment, settings.split), note))

    def restore(self, state: State, folder: RunFolder) -> State:
        """Return the state with the restored or initial lineage, and activate its instructions."""
        lineage = state.profiles or self.search.initial_lineage()
        self.search.rollouts.instruct(lineage.current_versions())
        _write_lineage(folder, lineage)
        return replace(state, profiles=lineage)

    def step(self, state: State, episodes: Sequence[Episode], folder: RunFolder) -> tuple[State, dict[str, float]]:
        """Play a round if due; return the state with the new lineage, and metrics."""
        lineage, metrics = state.profiles, dict[str, float]()
        assert lineage is not None, "restore has begun it"
        if self.search.settings.is_due(state.step):
            lineage, metrics = self.search.play_round(lineage, state.step, episodes)
            _write_lineage(folder, lineage)
        return replace(state, profiles=lineage), metrics | version_metrics(lineage)


def _write_lineage(folder: RunFolder, lineage: PromptHistory) -> None:
    atomic.write_file(folder.path / FILE_NAME, LINEAGE_ADAPTER.dump_json(lineage, indent=1).decode() + "\n")
