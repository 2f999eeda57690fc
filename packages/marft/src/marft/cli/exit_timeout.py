"""Process exit within a time limit, even if a package waits for a server without a reply."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

EXIT_SECONDS = 3.0  # seconds for packages to clean up after a command


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
