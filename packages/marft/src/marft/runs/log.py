"""``metrics.jsonl``: one object a step, of which a checkpoint remembers how far it went and what stood in it."""

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
class Mark:
    """How long the log was, in bytes, and their digest.

    >>> Mark.of(b"")
    Mark(length=0, digest='e3b0c442...')
    """

    length: int
    digest: str

    @staticmethod
    def of(content: bytes) -> Mark:
        return Mark(len(content), hashlib.sha256(content).hexdigest())


class Log:
    """Appends lines, and knows what it holds from what was written, not from what the disk gives back."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        self._digest, self._length = hashlib.sha256(content), len(content)
        self._file = path.open("ab")

    def append(self, row: Mapping[str, object]) -> None:
        """One JSON line; what is not finite becomes null, for JSON has no NaN."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        line = (json.dumps(clean) + "\n").encode()
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._digest.update(line)
        self._length += len(line)

    def mark(self) -> Mark:
        return Mark(self._length, self._digest.hexdigest())

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a log, and which of its lines cannot be read.

    A last line without an end was cut short by a crash, before its step counted: it is left out.
    """
    content = path.read_bytes() if path.is_file() else b""
    *lines, _ = content.split(b"\n")
    rows, problems = [], []
    for number, line in enumerate(lines, 1):
        row = row_of(line)
        if row is None:
            problems.append(f"line {number} cannot be read")
        else:
            rows.append(row)
    return rows, problems


def rewind(path: Path, done: int, mark: Mark) -> list[str]:
    """Make the log what it was when the checkpoint of step ``done`` was written → what was wrong with it.

    Where it is not as the checkpoint knows it, it is put aside, and every line that can be read and is not after the
    checkpoint is kept.
    """
    content = path.read_bytes() if path.is_file() else b""
    if Mark.of(content[: mark.length]) == mark:
        if len(content) > mark.length:
            atomic.write_file(path, content[: mark.length])
        return []
    rows, problems = read_rows(path)
    kept = [row for row in rows if row["step"] <= done]
    aside = _put_aside(path) if content else None
    atomic.write_file(path, "".join(json.dumps(row) + "\n" for row in kept))
    missing = _spans([step for step in range(1, done + 1) if step not in {row["step"] for row in kept}])
    if missing:
        problems.append(f"nothing is known of step {missing}" if missing.isdigit() else f"steps {missing} are missing")
    what = "; ".join(problems) or "every line can be read, but some are not those that were written"
    return [f"{path.name} is not as the checkpoint of step {done} knows it: {what}" + (
        f". It is kept as {aside.name}; all that can be read stays" if aside else "")]  # fmt: skip


def row_of(line: bytes) -> dict[str, Any] | None:
    """The row of a line of the log; None where it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and type(row.get("step")) is int
    return row if whole and all(value is None or _is_number(value) for value in row.values()) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _put_aside(path: Path) -> Path:
    aside = atomic.free_name(path, "damaged")
    shutil.copy2(path, aside)
    return aside


def _spans(steps: Sequence[int]) -> str:
    """
    >>> _spans([1, 2, 3, 7])
    '1 to 3, 7'
    """
    spans: list[list[int]] = []
    for step in steps:
        if spans and spans[-1][-1] == step - 1:
            spans[-1][1:] = [step]
        else:
            spans.append([step])
    return ", ".join(" to ".join(map(str, span)) for span in spans)
