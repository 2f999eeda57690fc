"""Weights & Biases logger."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from marft.common.errors import UserError
from marft.config.interfaces.metric_logger import MetricLogger, RunInfo
from marft.config.paths import ExpandUser
from marft.config.settings import Names, NonEmptyString

if TYPE_CHECKING:
    from wandb import Run


class WandB(MetricLogger):
    """Logger for Weights & Biases. The API key comes from ``wandb login`` or ``WANDB_API_KEY``. A resumed run continues
    under the same ID.
    """

    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    project: NonEmptyString = Field(default="marft", description="name of the project; created if missing")
    entity: str = Field(default="", description='user or team; "": your default entity')
    run_name: str = Field(default="", description='run name in Weights & Biases; "": the name of the MARFT run')
    group: str = Field(default="", description='group of runs shown together; "": none')
    tags: Names = Field(default=(), description="tags of the run")
    mode: Literal["", "online", "offline"] = Field(
        default="", description='online, or offline to keep files for wandb sync; "": WANDB_MODE, else online'
    )
    directory: Annotated[str, ExpandUser] = Field(
        default="", description='folder for local files; "": WANDB_DIR, else the working directory'
    )

    def open(self, run: RunInfo) -> _Run:
        """Open the run.

        Raises:
            UserError: online without an API key.
        """
        import wandb

        settings = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_meta=True)
        wandb.setup(settings)
        online = (self.mode or os.environ.get("WANDB_MODE", "online")) == "online"
        if online and not wandb.login(prompt=False, verify=False):
            raise UserError("no key of Weights & Biases: wandb login, or export WANDB_API_KEY=…, or mode = 'offline'")
        return _Run(
            wandb.init(
                project=self.project,
                entity=self.entity or None,
                name=self.run_name or run.name,
                group=self.group or None,
                tags=self.tags,
                id=run.id,
                resume="allow",
                mode=self.mode or None,
                dir=self.directory or None,
                config=dict(run.parameters),
                reinit="create_new",
                settings=settings,
            )
        )


class _Run:
    """Open run with its own ``step`` metric. wandb's own step only grows, but a resumed run repeats some steps."""

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
