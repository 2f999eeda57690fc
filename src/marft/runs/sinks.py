"""Where metrics go: JSON lines and TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch.utils.tensorboard.writer import SummaryWriter

from marft.runs.folder import RunFolder
from marft.runs.log import Log, Mark


class MetricSinks:
    """Appends one object a step.

    Args:
        done: training steps that the run has done already; TensorBoard drops what was logged after them.
    """

    def __init__(self, folder: RunFolder, done: int) -> None:
        self._log = Log(folder.metrics)
        board = folder.path / "tensorboard"
        board.mkdir(exist_ok=True)
        self._board = SummaryWriter(str(board), purge_step=done + 1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of training step ``step`` (counted from 1)."""
        self._log.append({"step": step, **metrics})
        for name, value in metrics.items():
            if math.isfinite(value):
                self._board.add_scalar(name, value, step)
        self._board.flush()

    def mark(self) -> Mark:
        """How far the log goes."""
        return self._log.mark()

    def close(self) -> None:
        self._log.close()
        self._board.close()
