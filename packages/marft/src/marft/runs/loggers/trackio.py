"""Trackio logger: a local dashboard, or a space on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from marft.config.interfaces.metric_logger import MetricLogger, RunInfo
from marft.config.settings import NonEmptyString

if TYPE_CHECKING:
    from trackio.run import Run


class Trackio(MetricLogger):
    """Logger for Trackio; ``trackio show`` opens the dashboard. A resumed run continues the same Trackio run, found by
    its name, which ends with the run's ID.
    """

    package: ClassVar[str] = "trackio"
    extra: ClassVar[str] = "trackio"

    project: NonEmptyString = Field(default="marft", description="name of the project; created if missing")
    run_name: str = Field(default="", description='run name in Trackio; "": the name of the MARFT run')
    group: str = Field(default="", description='group of runs shown together; "": none')
    space_id: str = Field(
        default="",
        description='Hugging Face space as user/space; "": TRACKIO_SPACE_ID, else this machine (TRACKIO_DIR)',
    )

    def open(self, run: RunInfo) -> _Run:
        """Open the Trackio run with its printed output suppressed."""
        import trackio
        import trackio.run
        import trackio.utils

        for module in (trackio, trackio.run, trackio.utils):
            vars(module)["print"] = _discard_output  # printed lines would interrupt the run's own output
        return _Run(
            trackio.init(
                project=self.project,
                name=f"{self.run_name or run.name}-{run.id[:8]}",
                group=self.group or None,
                space_id=self.space_id or None,
                config=dict(run.parameters),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
            )
        )


class _Run:
    def __init__(self, run: Run) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def note(self, step: int, text: str) -> None:
        self._run.alert("note", text, step=step)

    def close(self) -> None:
        self._run.finish()


def _discard_output(*_: object, **__: object) -> None:
    """Replace ``print`` and discard its output."""
