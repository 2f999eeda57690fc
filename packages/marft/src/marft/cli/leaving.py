"""A command ends when it is over, also where somebody's package waits for a server that does not answer."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PATIENCE = 3.0  # seconds that packages have to tidy up when a command is over


@contextmanager
def leaving() -> Iterator[None]:
    """For the last thing that a process does: where it is not gone ``PATIENCE`` after the command, end it, with the
    status that it has.

    What Python waits for when it ends (threads, those of pools too, and processes of ``multiprocessing``) and what
    packages do then (``atexit``) can otherwise take as long as they like.
    """
    status = 1
    try:
        yield
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        threading.Thread(target=_end, args=(status,), name="marft-leaving", daemon=True).start()


def _end(status: int) -> None:
    time.sleep(PATIENCE)
    # Before the children are killed: a main thread that waits for them ends the interpreter then, which must not stop
    # this thread while it holds a stream's lock.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # nobody reads it any more, or it is no stream
            stream.flush()
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError):  # it has just ended
            child.kill()
    os._exit(status)
