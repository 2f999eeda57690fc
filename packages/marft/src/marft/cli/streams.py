"""Robust standard streams: the command continues if stdout or stderr is closed or full."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TextIO

from marft.cli import errors
from marft.common.atomic import OWN, write_file

RUNS = {"train", "sft", "eval", "synthesize", "federate", "serve", "shadow", "score", "league", "worth", "view"}
FAILED = 2
NAMES = {1: "standard output", 2: "standard error"}
LOST: dict[int, OSError] = {}  # first error on standard output (1) or standard error (2)


class Unbroken(io.RawIOBase):
    """Raw output stream on a file descriptor. After the first failure, further output is dropped.

    Args:
        descriptor: file descriptor to write to.
        stream: 1 for standard output, 2 for standard error, independent of the descriptor.
        when_lost: called after the first failure.
    """

    def __init__(self, descriptor: int, stream: int, when_lost: Callable[[], object]) -> None:
        self._descriptor, self._stream, self._when_lost = descriptor, stream, when_lost

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return True for a terminal."""
        with suppress(OSError):
            return os.isatty(self._descriptor)
        return False

    def write(self, data: object) -> int:
        """Write the data and return the number of bytes; all bytes count as written after a failure."""
        content = bytes(data)  # type: ignore[call-overload]  # any buffer
        if self._stream not in LOST:
            try:
                return os.write(self._descriptor, content)
            except OSError as error:
                LOST[self._stream] = error
                with suppress(OSError):
                    _to_nowhere(self._descriptor)
                self._when_lost()
        return len(content)


def unbroken(
    descriptor: int, stream: int, encoding: str = "utf-8", when_lost: Callable[[], object] = lambda: None
) -> TextIO:
    """Return a text stream on a descriptor, line-buffered on a terminal and for stderr."""
    raw = Unbroken(descriptor, stream, when_lost)
    by_line = stream == 2 or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="replace", line_buffering=by_line)


@contextmanager
def unbroken_streams(words: Sequence[str]) -> Iterator[None]:
    """Run the block with tolerant standard streams: closed, full, or without a reader.

    A training run continues without them, and reports the loss once on the remaining stream. A command whose result is
    its output exits with status 2 if the output is incomplete. A reader that stops early (``| head``) is no error.

    Args:
        words: arguments of the command line.

    Raises:
        SystemExit: the output is incomplete.
    """
    LOST.clear()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            _to_nowhere(descriptor)  # otherwise the next opened file would get this number
            if descriptor:
                LOST[descriptor] = error
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    said = set[int]()
    say = partial(_say_lost, words, said)
    sys.stdout, sys.stderr = (
        unbroken(1, 1, _encoding(sys.stdout), say), unbroken(2, 2, _encoding(sys.stderr), say),
    )  # fmt: skip
    say()
    try:
        yield
    except SystemExit as end:
        if end.code or not _missing(words, said):
            raise
        raise SystemExit(FAILED) from None
    else:
        if _missing(words, said):
            raise SystemExit(FAILED)


def _missing(words: Sequence[str], said: set[int]) -> bool:
    """Flush the streams, report losses, and return True if the command's result is incomplete."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _say_lost(words, said)
    return 1 in LOST and not _is_run(words) and LOST[1].errno != errno.EPIPE


def _say_lost(words: Sequence[str], said: set[int]) -> None:
    """Report newly lost streams on the remaining stream."""
    for stream in sorted(LOST.keys() - said):
        said.add(stream)
        product = not _is_run(words)
        if stream == 1 and product and LOST[1].errno == errno.EPIPE:
            continue
        what = "what it printed is not whole" if product and stream == 1 else "the command goes on without it"
        sentence = f"marft: cannot write to {NAMES[stream]}: {LOST[stream].strerror}; {what}\n"
        left = sys.stderr if 2 not in LOST else sys.stdout if 1 not in LOST and "--json" not in words else None
        if left is not None:
            left.write(sentence)
        else:
            _write_beside_run(sentence)


def _write_beside_run(sentence: str) -> None:
    folder = errors.folder_of_run()
    if folder is not None and folder.is_dir():
        with suppress(OSError):
            path = folder / errors.IN_A_RUN
            before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            write_file(path, before + sentence, OWN)


def _to_nowhere(descriptor: int) -> None:
    """Redirect a descriptor to the null device, for this process and its future children."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _is_run(words: Sequence[str]) -> bool:
    return bool(RUNS & set(words[:1])) and "--dry-run" not in words
