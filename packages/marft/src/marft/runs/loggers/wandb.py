"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from marft.config.folders import AtHome
from marft.config.parts import SinkPart
from marft.config.settings import Filled, Names
from marft.runs.loggers.interface import Opening

if TYPE_CHECKING:
    from wandb import Run


class WandB(SinkPart):
    """Weights & Biases. The key is what ``wandb login`` has kept, or ``WANDB_API_KEY``. A run that goes on goes on
    there under the same id."""

    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    project: Filled = "marft"  # made where it is not there
    entity: str = ""  # user or team; "": your default one
    run_name: str = ""  # "": the run's own
    group: str = ""  # of runs that are shown together
    tags: Names = ()  # to find it by
    mode: Literal["", "online", "offline"] = ""  # offline: kept for wandb sync; "": WANDB_MODE, else online
    directory: Annotated[str, AtHome] = ""  # where its files go; "": WANDB_DIR, else the folder that marft runs in

    def open(self, run: Opening) -> _Run:
        import wandb

        settings = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_meta=True)
        wandb.setup(settings)
        online = (self.mode or os.environ.get("WANDB_MODE", "online")) == "online"
        if online and not wandb.login(prompt=False, verify=False):
            raise ValueError("no key of Weights & Biases: wandb login, or export WANDB_API_KEY=…, or mode = 'offline'")
        return _Run(
            wandb.init(
                project=self.project, entity=self.entity or None, name=self.run_name or run.name,
                group=self.group or None, tags=self.tags, id=run.id, resume="allow", mode=self.mode or None,
                dir=self.directory or None, config=dict(run.parameters), reinit="create_new", settings=settings,
            )
        )  # fmt: skip


class _Run:
    """Steps are a metric of ours: wandb's own only grow, and a run that goes on from a checkpoint repeats some."""

    def __init__(self, run: Run) -> None:
        self._run, self._notes = run, list[tuple[int, str]]()
        run.define_metric("step")
        run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def note(self, step: int, text: str) -> None:
        import wandb

        self._notes.append((step, text))
        table = wandb.Table(columns=["step", "note"], data=[list(note) for note in self._notes])
        self._run.log({"step": step, "notes": table})

    def close(self) -> None:
        self._run.finish()
