"""Counts of kernel launches, copies and synchronizations of the simulated GPU, each with the line that caused it."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

Direction = Literal["to device", "to host"]
HERE = str(Path(__file__).parent)
# frames that cause nothing themselves; the transfers in devices.py belong to their callers
SKIPPED = ("/torch/", "/contextlib.py", "/threading.py", "/numpy/", "/unittest/", "/marft/models/devices.py")


@dataclass(slots=True)
class Copies:
    """Copies in one direction between host and device."""

    number: int = 0
    bytes: int = 0
    blocking: int = 0  # copies for which the host waits
    lines: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class Counts:
    """Counts of one scope.

    >>> counts = Counts("decode step")
    >>> counts.add_sync("item")
    >>> counts.num_syncs
    1
    """

    name: str
    launches: Counter[str] = field(default_factory=Counter)  # by operation
    launch_lines: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)  # by operation and line
    to_device: Copies = field(default_factory=Copies)
    to_host: Copies = field(default_factory=Copies)

    @property
    def num_launches(self) -> int:
        """Number of kernel launches; a graph replay is one launch."""
        return self.launches.total()

    @property
    def num_syncs(self) -> int:
        """Number of times that the host waited for the device."""
        return self.syncs.total()

    def add_sync(self, what: str) -> None:
        """Count a wait of the host for the device."""
        self.syncs[f"{what} at {calling_line()}"] += 1

    def clear(self) -> None:
        """Set all counts to 0."""
        self.launches, self.launch_lines, self.syncs = Counter(), Counter(), Counter()
        self.to_device, self.to_host = Copies(), Copies()

    def report(self, lines: int = 10) -> str:
        """Return the counts as text, with the lines that cause most of them."""
        parts = [f"{self.name}: {self.num_launches} launches, {self.num_syncs} synchronizations"]
        for direction, copies in (("to device", self.to_device), ("to host", self.to_host)):
            parts.append(f"  {copies.number} copies {direction}, {copies.bytes} bytes, {copies.blocking} blocking")
            parts += [f"    {count:5d}  {line}" for line, count in copies.lines.most_common(lines)]
        parts += ["  synchronizations:", *(f"    {n:5d}  {line}" for line, n in self.syncs.most_common(lines))]
        parts += ["  launches:", *(f"    {n:5d}  {line}" for line, n in self.launch_lines.most_common(lines))]
        return "\n".join(parts)


_scopes: list[Counts] = []
_debug_mode = ["default"]
_capturable = [0]
_silent = [0]


class CaptureError(RuntimeError):
    """Operation that a CUDA graph cannot contain."""


@contextmanager
def counting(name: str) -> Iterator[Counts]:
    """Count what the simulated GPU does inside the context, in all threads; scopes may be nested."""
    counts = Counts(name)
    _scopes.append(counts)
    try:
        yield counts
    finally:
        _scopes.remove(counts)


@contextmanager
def capturable() -> Iterator[None]:
    """Fail at every synchronization and every copy from or to the host inside the context, as stream capture does.

    Raises:
        CaptureError: with the operation and the line that caused it.
    """
    _capturable[0] += 1
    try:
        yield
    finally:
        _capturable[0] -= 1


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing inside the context."""
    _silent[0] += 1
    try:
        yield
    finally:
        _silent[0] -= 1


def record_launch(operation: str, number: int = 1) -> None:
    """Count kernel launches of an operation."""
    if _scopes and number and not _silent[0]:
        line = calling_line()
        for counts in _scopes:
            counts.launches[operation] += number
            counts.launch_lines[f"{operation} at {line}"] += number


def record_sync(what: str) -> None:
    """Count a wait of the host for the device."""
    if _silent[0]:
        return
    _refuse_in_capture(what)
    _complain(what)
    for counts in _scopes:
        counts.add_sync(what)


def record_copy(direction: Direction, size: int, blocking: bool) -> None:
    """Count a copy of ``size`` bytes between host and device; a blocking one is also a synchronization."""
    if _silent[0]:
        return
    _refuse_in_capture(f"copy {direction}")
    if blocking:
        _complain(f"copy {direction}")
    for counts in _scopes:
        copies = counts.to_device if direction == "to device" else counts.to_host
        copies.number += 1
        copies.bytes += size
        copies.blocking += blocking
        copies.lines[calling_line()] += 1
        if blocking:
            counts.add_sync(f"copy {direction}")


def set_sync_debug_mode(mode: str) -> None:
    """Set the reaction to synchronizations, as ``torch.cuda.set_sync_debug_mode``: default, warn or error."""
    _debug_mode[0] = mode


def _complain(what: str) -> None:
    if _debug_mode[0] == "default":
        return
    text = f"called a synchronizing CUDA operation: {what} at {calling_line()}"
    if _debug_mode[0] == "error":
        raise RuntimeError(text)
    warnings.warn(text, stacklevel=2)


def _refuse_in_capture(what: str) -> None:
    if _capturable[0]:
        raise CaptureError(f"{what} at {calling_line()}: not permitted while a stream is capturing")


def calling_line() -> str:
    """Return the line outside PyTorch and this package that runs now, and MARFT's line if the first is a library's."""
    frame: FrameType | None = sys._getframe(1)
    first = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(HERE) and not any(part in name for part in SKIPPED):
            text = f"{_short_path(name)}:{frame.f_lineno}"
            if not first and "/site-packages/" not in name:
                return text
            if first and "/marft" in name and "/site-packages/" not in name:
                return f"{first} (from {text})"
            first = first or text
        frame = frame.f_back
    return first or "unknown"


def _short_path(name: str) -> str:
    for root in ("/site-packages/", "/src/"):
        if root in name:
            return name.rpartition(root)[2]
    return "/".join(Path(name).parts[-2:])
