"""Incremental reader for a run's ``metrics.jsonl``; each refresh reads only new lines."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marft.common.atomic import replace_non_finite
from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.evaluation.guards.monitor import GuardMonitor
from marft.runs.metrics_log import parse_row

Row = dict[str, Any]  # values by metric, and the step
Floats = npt.NDArray[np.float64]
GUARD_PREFIX = "guards/"


class MetricsLog:
    """Rows from a metrics log, with the findings of the guards.

    Args:
        path: the log.
        settings: thresholds of the run's guards.
    """

    def __init__(self, path: Path, settings: GuardSettings) -> None:
        self._path, self._settings = path, settings
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._offset, self._last = 0, b""  # number of bytes read, and the last line read
        self.rows: list[Row] = []
        self.guards: list[Row] = []
        self._watch = GuardMonitor(self._settings, ())
        self._raised_guards: frozenset[str] = frozenset()

    def refresh(self) -> MetricsLog:
        """Read new lines.

        The log is read again from the start if its read part has changed, as after resuming from an earlier
        checkpoint. An incomplete last line is left for the next refresh.
        """
        with self._lock:
            try:
                if not self._path.is_file():  # reading a pipe could block forever
                    raise FileNotFoundError
                with self._path.open("rb") as file:
                    if not self._is_unchanged(file.seek(0, 2), file):
                        self._reset()
                    file.seek(self._offset)
                    *lines, _ = file.read().split(b"\n")
            except OSError:  # not written yet, or deleted
                self._reset()
                return self
            for line in lines:
                self._offset, self._last = self._offset + len(line) + 1, line + b"\n"
                if (row := parse_row(line)) is not None:
                    self._add_row(row)
        return self

    def _is_unchanged(self, size: int, file: Any) -> bool:
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._last))
        return bool(file.read(len(self._last)) == self._last)

    def _add_row(self, row: Row) -> None:
        """Add a row, and the findings of guards that were not raised in the step before."""
        self.rows.append(row)
        sentences = {name: alert.message for name, alert in self._watch.check(row).alerts.items()}
        recorded = {
            name.removeprefix(GUARD_PREFIX) for name, value in row.items() if name.startswith(GUARD_PREFIX) and value
        }
        recorded.discard(ROLLBACK_KEY.removeprefix(GUARD_PREFIX))
        raised = frozenset(recorded | sentences.keys())
        for name in sorted(raised - self._raised_guards):
            sentence = sentences.get(name, f"the guard {name} is raised")
            self.guards.append({"step": row["step"], "name": name, "sentence": sentence})
        self._raised_guards = raised
        if (rollback_step := row.get(ROLLBACK_KEY)) is not None:
            sentence = f"the run goes back to the checkpoint of step {rollback_step:g}, with lower learning rates"
            self.guards.append({"step": row["step"], "name": "rolled_back_to", "sentence": sentence})
            self._watch.roll_back(int(rollback_step))
            self._raised_guards = frozenset()

    @property
    def step(self) -> int:
        """The last step; 0 before the first."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def get_active_guards(self, step: int) -> list[str]:
        """Return the guards raised in a step, including guards already raised before."""
        row: Row = next((row for row in reversed(self.rows) if row["step"] == step), {})
        names = [
            name.removeprefix(GUARD_PREFIX) for name, value in row.items() if name.startswith(GUARD_PREFIX) and value
        ]
        return [name for name in names if name != ROLLBACK_KEY.removeprefix(GUARD_PREFIX)]

    def get_metric_names(self) -> list[str]:
        """Return every metric name, in order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "step"))

    def get_series(
        self, names: Sequence[str], since: int, points: int
    ) -> tuple[list[int], dict[str, list[float | None]]]:
        """Return metrics for the steps after ``since``, at no more than ``points`` steps.

        Kept are the first and last step, and each metric's minimum and maximum in every stretch.
        """
        rows = [row for row in self.rows if row["step"] > since]
        columns = {name: np.array([_to_float(row.get(name)) for row in rows], np.float64) for name in names}
        indices = downsample(list(columns.values()), len(rows), points)
        steps = [int(rows[index]["step"]) for index in indices]
        return steps, {name: [_to_json(column[index]) for index in indices] for name, column in columns.items()}


def downsample(columns: Sequence[Floats], size: int, points: int) -> list[int]:
    """Return the row indexes to show.

    Kept are all rows if there are few. Otherwise, kept are the first and last row, and each column's minimum and
    maximum in stretches of equal length. Between two kept points, a curve stays within their range.

    >>> downsample([np.array([0.0, 9.0, 1.0, 2.0, -5.0, 3.0, 4.0, 5.0])], 8, 6)
    [0, 1, 4, 7]
    """
    if size <= points or not columns:
        return list(range(size))
    num_segments = max(1, (points - 2) // (2 * len(columns)))
    edges = np.linspace(0, size, num_segments + 1).round().astype(int)
    indices = {0, size - 1}
    for column in columns:
        for start, stop in pairwise(edges.tolist()):
            part = column[start:stop]
            if not np.isnan(part).all():
                indices |= {start + int(np.nanargmin(part)), start + int(np.nanargmax(part))}
    return sorted(indices)


def _to_float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _to_json(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def dump_json(value: object) -> bytes:
    """Serialize to JSON with null for non-finite numbers."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    except ValueError:
        return dump_json(replace_non_finite(value))
