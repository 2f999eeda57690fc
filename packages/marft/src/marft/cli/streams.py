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
from marft.common.atomic import PRIVATE_MODE, write_file

RUN_COMMANDS = {"train", "sft", "eval", "synthesize", "federate", "serve", "shadow", "score", "league", "worth", "view"}
FAILED_STATUS = 2
STREAM_NAMES = {1: "standard output", 2: "standard error"}
STREAM_ERRORS: dict[int, OSError] = {}  # first error on standard output (1) or standard error (2)


class SafeStream(io.RawIOBase):
    """Raw output stream on a file descriptor. After the first failure, further output is dropped.

    Args:
        descriptor: file descriptor to write to.
        stream: 1 for standard output, 2 for standard error, independent of the descriptor.
        on_failure: called after the first failure.
    """

    def __init__(self, descriptor: int, stream: int, on_failure: Callable[[], object]) -> None:
        self._descriptor, self._stream, self._on_failure = descriptor, stream, on_failure

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
        if self._stream not in STREAM_ERRORS:
            try:
                return os.write(self._descriptor, content)
            except OSError as error:
                STREAM_ERRORS[self._stream] = error
                with suppress(OSError):
                    _redirect_to_null(self._descriptor)
                self._on_failure()
        return len(content)


def open_safe_stream(
    descriptor: int, stream: int, encoding: str = "utf-8", on_failure: Callable[[], object] = lambda: None
) -> TextIO:
    """Return a text stream on a descriptor, line-buffered on a terminal and for stderr."""
    raw = SafeStream(descriptor, stream, on_failure)
    by_line = stream == 2 or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="replace", line_buffering=by_line)


@contextmanager
def safe_streams(arguments: Sequence[str]) -> Iterator[None]:
    """Run the block with tolerant standard streams: closed, full, or without a reader.

    A training run continues without them, and reports the loss once on the remaining stream. A command whose result is
    its output exits with status 2 if the output is incomplete. A reader that stops early (``| head``) is no error.

    Args:
        arguments: arguments of the command line.

    Raises:
        SystemExit: the output is incomplete.
    """
    STREAM_ERRORS.clear()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            _redirect_to_null(descriptor)  # otherwise the next opened file would get this number
            if descriptor:
                STREAM_ERRORS[descriptor] = error
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    reported = set[int]()
    report = partial(_report_failures, arguments, reported)
    sys.stdout, sys.stderr = (
        open_safe_stream(1, 1, _get_encoding(sys.stdout), report),
        open_safe_stream(2, 2, _get_encoding(sys.stderr), report),
    )
    report()
    try:
        yield
    except SystemExit as end:
        if end.code or not _is_incomplete(arguments, reported):
            raise
        raise SystemExit(FAILED_STATUS) from None
    else:
        if _is_incomplete(arguments, reported):
            raise SystemExit(FAILED_STATUS)


def _is_incomplete(arguments: Sequence[str], reported: set[int]) -> bool:
    """Flush the streams, report losses, and return True if the command's result is incomplete."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _report_failures(arguments, reported)
    return 1 in STREAM_ERRORS and not _is_run(arguments) and STREAM_ERRORS[1].errno != errno.EPIPE


def _report_failures(arguments: Sequence[str], reported: set[int]) -> None:
    """Report newly lost streams on the remaining stream."""
    for stream in sorted(STREAM_ERRORS.keys() - reported):
        reported.add(stream)
        is_product = not _is_run(arguments)
        if stream == 1 and is_product and STREAM_ERRORS[1].errno == errno.EPIPE:
            continue
        consequence = "what it printed is not whole" if is_product and stream == 1 else "the command goes on without it"
        sentence = f"marft: cannot write to {STREAM_NAMES[stream]}: {STREAM_ERRORS[stream].strerror}; {consequence}\n"
        if 2 not in STREAM_ERRORS:
            sys.stderr.write(sentence)
        elif 1 not in STREAM_ERRORS and "--json" not in arguments:
            sys.stdout.write(sentence)
        else:
            _write_to_run(sentence)


def _write_to_run(sentence: str) -> None:
    folder = errors.get_run_folder()
    if folder is not None and folder.is_dir():
        with suppress(OSError):
            path = folder / errors.RUN_ERROR_FILE
            before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            write_file(path, before + sentence, PRIVATE_MODE)


def _redirect_to_null(descriptor: int) -> None:
    """Redirect a descriptor to the null device, for this process and its future children."""
    null_device = os.open(os.devnull, os.O_RDWR)
    if null_device != descriptor:
        os.dup2(null_device, descriptor)
        os.close(null_device)


def _get_encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _is_run(arguments: Sequence[str]) -> bool:
    return bool(RUN_COMMANDS & set(arguments[:1])) and "--dry-run" not in arguments
