"""Trackio: a local dashboard, or one in a space of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from marft.config.parts import SinkPart
from marft.config.settings import Filled
from marft.runs.loggers.interface import Opening

if TYPE_CHECKING:
    from trackio.run import Run


class Trackio(SinkPart):
    """Trackio: ``trackio show`` opens what was kept. A run that goes on goes on there, by its name, which ends with the
    run's id."""

    package: ClassVar[str] = "trackio"
    extra: ClassVar[str] = "trackio"

    project: Filled = "marft"  # made where it is not there
    run_name: str = ""  # "": the run's own
    group: str = ""  # of runs that are shown together
    space_id: str = ""  # user/space of the hub; "": TRACKIO_SPACE_ID, else this machine (TRACKIO_DIR)

    def open(self, run: Opening) -> _Run:
        import trackio
        import trackio.run
        import trackio.utils

        for module in (trackio, trackio.run, trackio.utils):
            vars(module)["print"] = _unheard  # what it prints would stand between the lines of the run
        return _Run(
            trackio.init(
                project=self.project, name=f"{self.run_name or run.name}-{run.id[:8]}", group=self.group or None,
                space_id=self.space_id or None, config=dict(run.parameters), resume="allow", embed=False,
                auto_log_cpu=False,
            )
        )  # fmt: skip


class _Run:
    def __init__(self, run: Run) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def note(self, step: int, text: str) -> None:
        self._run.alert("note", text, step=step)

    def close(self) -> None:
        self._run.finish()


def _unheard(*_: object, **__: object) -> None:
    """In the place of ``print``."""
