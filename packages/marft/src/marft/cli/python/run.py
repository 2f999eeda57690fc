"""Recorded run in the Python API: recipe, metrics, episodes, checkpoints, adapters and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from marft.cli.python.arguments import check_count, check_text
from marft.common.errors import UserError
from marft.config.run import CheckpointSettings
from marft.config.settings import did_you_mean
from marft.runs.run_folder import RunFolder, parse_step

if TYPE_CHECKING:
    from marft.common.types import Episode
    from marft.evaluation.evaluate import Evaluation


@dataclass(frozen=True, repr=False)
class Run:
    """Recorded run. Each access reads the files again, so a run can be inspected during training."""

    folder: RunFolder
    given: Sequence[Any] = ()  # Python objects that its recipe refers to by placeholder

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, step {self.step})"

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.folder.path

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The complete recipe, as tables.

        Raises:
            UserError: the recipe cannot be read.
        """
        return self.folder.read_recipe().model_dump()

    @property
    def step(self) -> int:
        """Number of logged training steps."""
        rows = self.metrics
        return int(rows[-1]["step"]) if rows else 0

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Metrics table for each step, with its number as ``step`` (docs: metrics)."""
        return self.folder.read_metrics()

    @property
    def steps(self) -> list[int]:
        """Steps with recorded episodes."""
        return [parse_step(path) for path in self.folder.recorded_steps()]

    def episodes(
        self,
        step: int = 0,
        *,
        agent: str = "",
        task: str = "",
        order: Literal["", "worst", "best", "failed"] = "",
        count: int = 0,
    ) -> list[Episode]:
        """Return a step's recorded episodes, without task data.

        Args:
            step: counted from 1; 0: the last recorded one.
            agent: role; only its actions stay in each episode.
            task: ``id``, or ``id#sample``.
            order: ``worst`` or ``best`` sorts by reward; ``failed`` selects episodes without a score. "": in order of
                play.
            count: maximum number; 0: all.

        Raises:
            UserError: the step has no recording, the role is unknown, or the order is invalid.
        """
        from marft.evaluation.transcripts import Order, read_task_episodes, select_attempts, sort_episodes

        for number, label in ((step, "step"), (count, "count")):
            check_count(number, label)
        for text, label in ((agent, "agent"), (task, "task")):
            check_text(text, label)
        if order not in get_args(Order):
            raise UserError(f"order: {order!r} is none of {', '.join(filter(None, get_args(Order)))}")
        file = self.folder.find_recorded(step)
        selected = sort_episodes(select_attempts(read_task_episodes(file, task), task), order)
        if agent:
            roles = {action.agent for episode in selected for action in episode.actions}
            if selected and agent not in roles:
                raise UserError(f"nobody called {agent!r} acted here{did_you_mean(agent, roles)}")
            selected = [replace(e, actions=tuple(a for a in e.actions if a.agent == agent)) for e in selected]
        return selected[: count or None]

    @property
    def checkpoints(self) -> list[Path]:
        """Checkpoint folders, oldest first."""
        return self.folder.saved_steps()

    def checkpoint(self, name: str = "last") -> Path:
        """Return a checkpoint's folder: ``last``, ``best`` or ``step_000050``.

        Raises:
            UserError: the checkpoint does not exist.
        """
        from marft.runs.checkpoints import CheckpointManager

        return CheckpointManager(self.folder, CheckpointSettings()).find(name)

    def adapters(self, checkpoint: str = "last") -> dict[str, Path]:
        """Return adapter folders in PEFT format, by policy.

        Raises:
            UserError: the checkpoint does not exist.
        """
        paths = sorted((self.checkpoint(checkpoint) / "policies").iterdir())
        return {folder.name: folder for folder in paths if (folder / "adapter_config.json").is_file()}

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """All saved evaluations.

        Raises:
            UserError: an evaluation cannot be read.
        """
        return self.folder.read_evaluations()

    def evaluate(self, changes: Mapping[str, Any] | Sequence[str] = (), /, **options: Any) -> list[Evaluation]:
        """Evaluate the run as in :func:`marft.evaluate`. Needs data, rewards and models."""
        from marft.cli.python.commands import evaluate

        return evaluate(self, changes, **options)

    def report(self) -> Path:
        """Write ``report.html`` again and return its path."""
        from marft.evaluation.report import write_report

        write_report(self.folder)
        return self.folder.report_path
