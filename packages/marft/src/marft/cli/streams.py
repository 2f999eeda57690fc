"""Standard output and error of a command that goes on where nobody reads them, or nothing more fits."""

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
LOST: dict[int, OSError] = {}  # why nothing more goes to standard output (1) or standard error (2)


class Unbroken(io.RawIOBase):
    """A file descriptor to write to. From the first failure on, what is written is dropped.

    Args:
        stream: 1 for standard output, 2 for standard error, wherever the descriptor leads.
        when_lost: called after the first failure.
    """

    def __init__(self, descriptor: int, stream: int, when_lost: Callable[[], object]) -> None:
        self._descriptor, self._stream, self._when_lost = descriptor, stream, when_lost

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        with suppress(OSError):
            return os.isatty(self._descriptor)
        return False

    def write(self, data: object) -> int:
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
    """Return a text stream to a descriptor, flushed at each end of a line where that is a terminal."""
    raw = Unbroken(descriptor, stream, when_lost)
    by_line = stream == 2 or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="replace", line_buffering=by_line)


@contextmanager
def unbroken_streams(words: Sequence[str]) -> Iterator[None]:
    """Let the block print to streams that may be closed, full, or read by nobody.

    A run goes on without them, and says once what is lost on what is left. A command whose product is what it prints
    ends with status 2 where that is not whole, but quietly where its reader has stopped (``| head``).

    Args:
        words: of the command line.

    Raises:
        SystemExit: the product is not whole.
    """
    LOST.clear()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            _to_nowhere(descriptor)  # else the next file that is opened would go by this number
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
    """Write what is left, say what is lost, and return whether it was the product of the command."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _say_lost(words, said)
    return 1 in LOST and not _is_run(words) and LOST[1].errno != errno.EPIPE


def _say_lost(words: Sequence[str], said: set[int]) -> None:
    """Say what is lost and was not said before, on what is left."""
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
    """Let a descriptor lead to the null device, for this process and those that it starts from here on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _is_run(words: Sequence[str]) -> bool:
    return bool(RUNS & set(words[:1])) and "--dry-run" not in words
