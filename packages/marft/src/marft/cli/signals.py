"""Reliable handling for signals that end a command.

An exception raised in a signal handler normally ends the command. Python may run the handler inside a weak-reference
callback or a ``__del__``. Exceptions from there are reported and dropped, and the signal is lost with them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RESEND_DELAY_SECONDS = 0.02  # seconds until the interrupted callback has ended


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
