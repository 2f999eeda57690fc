"""TensorBoard logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from marft.config.interfaces.metric_logger import MetricLogger, RunInfo

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoard(MetricLogger):
    """Logger for TensorBoard event files in the run's folder: ``tensorboard --logdir runs``. A resumed run deletes the
    events after its checkpoint.
    """

    folder: ClassVar[str] = "tensorboard"

    def open(self, run: RunInfo) -> _Run:
        """Open the event file; on resume, purge the steps after the checkpoint."""
        from torch.utils.tensorboard.writer import SummaryWriter

        board = _Run(SummaryWriter(str(run.folder / self.folder), purge_step=run.finished_steps + 1))
        if not run.finished_steps:
            board.note(0, "\n".join(f"    {key} = {value}" for key, value in run.parameters.items()), "recipe")
        return board


class _Run:
    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def note(self, step: int, text: str, tag: str = "notes") -> None:
        self._writer.add_text(tag, text, step)

    def close(self) -> None:
        self._writer.close()
