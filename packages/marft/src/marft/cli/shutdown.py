"""The end of a command's process: by a signal, and within a time limit.

An exception raised in a signal handler normally ends the command. Python may run the handler inside a weak-reference
callback or a ``__del__``. Exceptions from there are reported and dropped, and the signal is lost with them.

At exit, packages may wait for a server without a reply.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

RESEND_DELAY_SECONDS = 0.02  # seconds until the interrupted callback has ended

EXIT_SECONDS = 3.0  # seconds for packages to clean up after a command


def handle_sigterm(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Handle SIGTERM: release all resources and exit. Saved state stays complete.

    Raises:
        SystemExit: with the status that shells use for the signal.
    """
    raise SystemExit(128 + number)


@contextmanager
def resend_dropped() -> Iterator[None]:
    """Send a signal again if Python dropped its exception: Ctrl-C, and :func:`handle_sigterm`."""
    before = sys.unraisablehook

    def dropped(args: sys.UnraisableHookArgs) -> None:
        number = _dropped_signal(args)
        if number is None:
            before(args)
            return
        timer = threading.Timer(RESEND_DELAY_SECONDS, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = before


def _dropped_signal(args: sys.UnraisableHookArgs) -> signal.Signals | None:
    """Return the signal whose handler raised the exception; None for other exceptions."""
    if issubclass(args.exc_type, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(args.exc_value, SystemExit) and args.exc_value.code == 128 + signal.SIGTERM:
        return signal.SIGTERM
    return None


@contextmanager
def limit_exit_time() -> Iterator[None]:
    """Ensure that the process ends within ``EXIT_SECONDS`` seconds after the block, with the block's exit status.

    At exit, Python waits for threads (those of pools too) and for processes of ``multiprocessing``, and packages run
    ``atexit`` functions. Without a limit, each of these may block forever.
    """
    status = 1
    try:
        yield
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        threading.Thread(target=_force_exit, args=(status,), name="marft-leaving", daemon=True).start()


def _force_exit(status: int) -> None:
    time.sleep(EXIT_SECONDS)
    # Flush before killing the children: a main thread that waits for them would end the interpreter and stop this
    # thread while it holds a stream's lock.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the reader is gone, or it is no stream
            stream.flush()
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError):  # the process has just ended
            child.kill()
    os._exit(status)
