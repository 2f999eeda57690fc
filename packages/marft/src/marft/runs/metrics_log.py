"""Metrics log ``metrics.jsonl``: one object a step; a checkpoint records its length and digest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.common import atomic


@dataclass(frozen=True, slots=True)
class LogDigest:
    """Length and digest of the log, in bytes and hexadecimal digits.

    >>> LogDigest.from_content(b"")
    LogDigest(length=0, digest='e3b0c442...')
    """

    length: int
    digest: str

    @staticmethod
    def from_content(content: bytes) -> LogDigest:
        """Return the mark for a log with this content."""
        return LogDigest(len(content), hashlib.sha256(content).hexdigest())


class MetricsLog:
    """Append-only log with a running digest over the written bytes, not over the bytes on disk."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        self._digest, self._length = hashlib.sha256(content), len(content)
        self._file = path.open("ab")

    def append(self, row: Mapping[str, object]) -> None:
        """Append one JSON line; non-finite numbers become null, because JSON has no NaN."""
        json_row = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        line = (json.dumps(json_row) + "\n").encode()
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._digest.update(line)
        self._length += len(line)

    def current_digest(self) -> LogDigest:
        """Return the current length and digest."""
        return LogDigest(self._length, self._digest.hexdigest())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the rows of a log, with a problem for each unreadable line.

    A last line without a newline is ignored: a crash interrupted it before its step counted.
    """
    content = path.read_bytes() if path.is_file() else b""
    *lines, _ = content.split(b"\n")
    rows, problems = [], []
    for number, line in enumerate(lines, 1):
        row = parse_row(line)
        if row is None:
            problems.append(f"line {number} cannot be read")
        else:
            rows.append(row)
    return rows, problems


def truncate_log(path: Path, last_step: int, digest: LogDigest) -> list[str]:
    """Truncate the log to its state at checkpoint ``last_step``, and return problems.

    If the log does not match the checkpoint, a copy is kept. The readable lines up to the checkpoint are kept in the
    log.

    Args:
        last_step: step of the checkpoint.
        digest: length and digest of the log at the checkpoint.
    """
    content = path.read_bytes() if path.is_file() else b""
    if LogDigest.from_content(content[: digest.length]) == digest:
        if len(content) > digest.length:
            atomic.write_file(path, content[: digest.length])
        return []
    rows, problems = read_rows(path)
    remaining = [row for row in rows if row["step"] <= last_step]
    backup = _back_up(path) if content else None
    atomic.write_file(path, "".join(json.dumps(row) + "\n" for row in remaining))
    logged = {row["step"] for row in remaining}
    missing = _format_ranges([step for step in range(1, last_step + 1) if step not in logged])
    if missing:
        problems.append(f"nothing is known of step {missing}" if missing.isdigit() else f"steps {missing} are missing")
    reason = "; ".join(problems) or "every line can be read, but some are not those that were written"
    return [
        f"{path.name} is not as the checkpoint of step {last_step} knows it: {reason}"
        + (f". It is kept as {backup.name}; all that can be read stays" if backup else "")
    ]


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Parse a log line. The result is None for an invalid line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_valid = isinstance(row, dict) and type(row.get("step")) is int
    return row if is_valid and all(value is None or _is_number(value) for value in row.values()) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _back_up(path: Path) -> Path:
    backup = atomic.unused_path(path, "damaged")
    shutil.copy2(path, backup)
    return backup


def _format_ranges(steps: Sequence[int]) -> str:
    """Format step numbers as ranges.

    >>> _format_ranges([1, 2, 3, 7])
    '1 to 3, 7'
    """
    spans: list[list[int]] = []
    for step in steps:
        if spans and spans[-1][-1] == step - 1:
            spans[-1][1:] = [step]
        else:
            spans.append([step])
    return ", ".join(" to ".join(map(str, span)) for span in spans)
