"""Where metrics go: JSON lines and TensorBoard."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from torch.utils.tensorboard.writer import SummaryWriter

from marft.runs import atomic
from marft.runs.folder import RunFolder


class MetricSinks:
    """Appends one object a step. A run that resumes at step k drops what was logged after it.

    Args:
        done: training steps that the run has done already.
    """

    def __init__(self, folder: RunFolder, done: int) -> None:
        kept = [row for row in folder.read_metrics() if row["step"] <= done]
        atomic.write_file(folder.metrics, "".join(_line(row) for row in kept))
        self._file = folder.metrics.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder.path / "tensorboard"), purge_step=done + 1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of training step ``step`` (counted from 1)."""
        self._file.write(_line({"step": step, **metrics}))
        self._file.flush()
        os.fsync(self._file.fileno())
        for name, value in metrics.items():
            if math.isfinite(value):
                self._board.add_scalar(name, value, step)
        self._board.flush()

    def close(self) -> None:
        self._file.close()
        self._board.close()


def _line(row: Mapping[str, Any]) -> str:
    """One JSON line; what is not finite becomes null, for JSON has no NaN."""
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(clean) + "\n"
