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

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import RETURNED
from marft.evaluation.guards.watch import Watch
from marft.runs.log import row_of

Floats = npt.NDArray[np.float64]
GUARD = "guards/"


class MetricsLog:
    """Rows from a metrics log, with the findings of the guards.

    Args:
        path: the log.
        settings: thresholds of the run's guards.
    """

    def __init__(self, path: Path, settings: GuardSettings) -> None:
        self._path, self._settings = path, settings
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._offset, self._last = 0, b""  # number of bytes read, and the last line read
        self.rows: list[dict[str, Any]] = []
        self.guards: list[dict[str, Any]] = []
        self._watch = Watch(self._settings, (), lambda _: None)
        self._raised: frozenset[str] = frozenset()

    def look(self) -> MetricsLog:
        """Read new lines.

        The log is read again from the start if its read part has changed, as after resuming from an earlier
        checkpoint. An incomplete last line is left for the next refresh.
        """
        with self._lock:
            try:
                if not self._path.is_file():  # reading a pipe could block forever
                    raise FileNotFoundError
                with self._path.open("rb") as file:
                    if not self._goes_on(file.seek(0, 2), file):
                        self._begin()
                    file.seek(self._offset)
                    *lines, _ = file.read().split(b"\n")
            except OSError:  # not written yet, or deleted
                self._begin()
                return self
            for line in lines:
                self._offset, self._last = self._offset + len(line) + 1, line + b"\n"
                if (row := row_of(line)) is not None:
                    self._take(row)
        return self

    def _goes_on(self, size: int, file: Any) -> bool:
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._last))
        return bool(file.read(len(self._last)) == self._last)

    def _take(self, row: dict[str, Any]) -> None:
        """Add a row, and the findings of guards that were not raised in the step before."""
        self.rows.append(row)
        found = {name: finding.sentence for name, finding in self._watch.look(row).findings.items()}
        written = {name.removeprefix(GUARD) for name, value in row.items() if name.startswith(GUARD) and value}
        written.discard(RETURNED.removeprefix(GUARD))
        raised = frozenset(written | found.keys())
        for name in sorted(raised - self._raised):
            sentence = found.get(name, f"the guard {name} is raised")
            self.guards.append({"step": row["step"], "name": name, "sentence": sentence})
        self._raised = raised
        if (back := row.get(RETURNED)) is not None:
            sentence = f"the run goes back to the checkpoint of step {back:g}, with lower learning rates"
            self.guards.append({"step": row["step"], "name": "returned_to", "sentence": sentence})
            self._watch.go_back(int(back))
            self._raised = frozenset()

    @property
    def step(self) -> int:
        """The last step; 0 before the first."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def guards_at(self, step: int) -> list[str]:
        """Return the guards raised in a step, including guards already raised before."""
        row: dict[str, Any] = next((row for row in reversed(self.rows) if row["step"] == step), {})
        names = [name.removeprefix(GUARD) for name, value in row.items() if name.startswith(GUARD) and value]
        return [name for name in names if name != RETURNED.removeprefix(GUARD)]

    def names(self) -> list[str]:
        """Return every metric name, in order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "step"))

    def series(self, names: Sequence[str], since: int, points: int) -> tuple[list[int], dict[str, list[float | None]]]:
        """Return metrics for the steps after ``since``, at no more than ``points`` steps.

        Kept are the first and last step, and each metric's minimum and maximum in every stretch.
        """
        rows = [row for row in self.rows if row["step"] > since]
        columns = {name: np.array([_number(row.get(name)) for row in rows], np.float64) for name in names}
        kept = thinned(list(columns.values()), len(rows), points)
        steps = [int(rows[index]["step"]) for index in kept]
        return steps, {name: [_json(column[index]) for index in kept] for name, column in columns.items()}


def thinned(columns: Sequence[Floats], size: int, points: int) -> list[int]:
    """Return the row indexes to show.

    Kept are all rows if there are few. Otherwise, kept are the first and last row, and each column's minimum and
    maximum in stretches of equal length. Between two kept points, a curve stays within their range.

    >>> thinned([np.array([0.0, 9.0, 1.0, 2.0, -5.0, 3.0, 4.0, 5.0])], 8, 6)
    [0, 1, 4, 7]
    """
    if size <= points or not columns:
        return list(range(size))
    stretches = max(1, (points - 2) // (2 * len(columns)))
    edges = np.linspace(0, size, stretches + 1).round().astype(int)
    kept = {0, size - 1}
    for column in columns:
        for start, stop in pairwise(edges.tolist()):
            part = column[start:stop]
            if not np.isnan(part).all():
                kept |= {start + int(np.nanargmin(part)), start + int(np.nanargmax(part))}
    return sorted(kept)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _json(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def dumps(value: object) -> bytes:
    """Serialize to JSON with null for non-finite numbers."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    except ValueError:
        return dumps(_finite(value))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
