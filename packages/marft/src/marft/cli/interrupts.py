"""Signals that end a command are heeded wherever they strike.

What the handler of a signal raises ends the command, but not where Python happens to run a callback of a weak reference
or a ``__del__``: exceptions from there are reported and dropped, and the signal with them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 0.02  # after which the callback that it struck in is over


def terminated(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """The handler of SIGTERM: let go of everything that was started; what was saved is whole.

    Raises:
        SystemExit: with the status that a shell has for it.
    """
    raise SystemExit(128 + number)


@contextmanager
def heeded() -> Iterator[None]:
    """Send a signal again whose exception Python dropped: Ctrl-C's, and that of :func:`terminated`."""
    before = sys.unraisablehook

    def dropped(what: sys.UnraisableHookArgs) -> None:
        number = _sent(what)
        if number is None:
            before(what)
            return
        again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = before


def _sent(what: sys.UnraisableHookArgs) -> signal.Signals | None:
    """The signal whose handler raised it."""
    if issubclass(what.exc_type, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(what.exc_value, SystemExit) and what.exc_value.code == 128 + signal.SIGTERM:
        return signal.SIGTERM
    return None
