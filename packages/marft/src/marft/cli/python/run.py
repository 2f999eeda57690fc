"""A run that was recorded, for Python: recipe, metrics, episodes, checkpoints, adapters, evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from marft.cli.python.asked import check_count, check_text
from marft.config.run import CheckpointSettings
from marft.config.settings import did_you_mean
from marft.runs.folder import RunFolder, step_of

if TYPE_CHECKING:
    from marft.common.types import Episode
    from marft.evaluation.evaluate import Evaluation


@dataclass(frozen=True, repr=False)
class Run:
    """The folder of a run. What it says is read anew each time, so a run can be looked at while it trains."""

    folder: RunFolder
    given: Sequence[Any] = ()  # what its recipe names as given in Python

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, step {self.step})"

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The complete recipe, as tables.

        Raises:
            ValueError: it cannot be read.
        """
        return self.folder.read_recipe().model_dump()

    @property
    def step(self) -> int:
        """Training steps that were logged."""
        rows = self.metrics
        return int(rows[-1]["step"]) if rows else 0

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One table a step, with its number as ``step`` (docs: metrics)."""
        return self.folder.read_metrics()

    @property
    def steps(self) -> list[int]:
        """Steps of which episodes were recorded."""
        return [step_of(path) for path in self.folder.recorded_steps()]

    def episodes(
        self, step: int = 0, *, agent: str = "", task: str = "", order: Literal["", "worst", "best", "failed"] = "",
        count: int = 0,
    ) -> list[Episode]:  # fmt: skip
        """Recorded episodes of a step, without the data of their tasks.

        Args:
            step: counted from 1; 0 is the last one recorded.
            agent: a role: only its actions are left in each episode.
            task: ``id``, or ``id#sample``.
            order: those that earned least, or most, first; or those that could not be scored. "": as they were played.
            count: how many; 0: all.

        Raises:
            ValueError: nothing was recorded at that step, nobody goes by that role, or there is no such order.
        """
        from marft.evaluation.transcripts import Order, attempts_at, ordered, read_of

        for number, what in ((step, "step"), (count, "count")):
            check_count(number, what)
        for text, what in ((agent, "agent"), (task, "task")):
            check_text(text, what)
        if order not in get_args(Order):
            raise ValueError(f"order: {order!r} is none of {', '.join(filter(None, get_args(Order)))}")
        file = self.folder.recorded(step)
        found = ordered(attempts_at(read_of(file, task), task) if task else read_of(file, ""), order)
        if agent:
            roles = {action.agent for episode in found for action in episode.actions}
            if found and agent not in roles:
                raise ValueError(f"nobody called {agent!r} acted here{did_you_mean(agent, roles)}")
            found = [replace(e, actions=tuple(a for a in e.actions if a.agent == agent)) for e in found]
        return found[: count or None]

    @property
    def checkpoints(self) -> list[Path]:
        """Folders, oldest first."""
        return self.folder.saved_steps()

    def checkpoint(self, name: str = "last") -> Path:
        """A checkpoint's folder: ``last``, ``best`` or ``step_000050``.

        Raises:
            ValueError: there is none.
        """
        from marft.runs.checkpoints import Checkpoints

        return Checkpoints(self.folder, CheckpointSettings()).find(name)

    def adapters(self, checkpoint: str = "last") -> dict[str, Path]:
        """Folders in peft's format, by policy.

        Raises:
            ValueError: there is no such checkpoint.
        """
        folders = sorted((self.checkpoint(checkpoint) / "policies").iterdir())
        return {folder.name: folder for folder in folders if (folder / "adapter_config.json").is_file()}

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation that was saved.

        Raises:
            ValueError: one cannot be read.
        """
        return self.folder.read_evaluations()

    def evaluate(self, changes: Mapping[str, Any] | Sequence[str] = (), /, **options: Any) -> list[Evaluation]:
        """As :func:`marft.evaluate`. This takes data, rewards and models."""
        from marft.cli.python.commands import evaluate

        return evaluate(self, changes, **options)

    def report(self) -> Path:
        """Write ``report.html`` anew → where it is."""
        from marft.evaluation.report import write_report

        write_report(self.folder)
        return self.folder.report
