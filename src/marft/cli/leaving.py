"""A command ends when it is over, also where a sink's package waits for a server that does not answer."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 3.0  # seconds that packages have to tidy up when a command is over
NAMED = "sink "  # what the threads of sinks are called


@contextmanager
def leaving() -> Iterator[None]:
    """Where a sink was left behind at the end, end the process after ``PATIENCE``, with the status that it has.

    What packages do when Python ends (``atexit``) can otherwise wait as long as they like.
    """
    status = 1
    try:
        yield
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        if any(thread.name.startswith(NAMED) for thread in threading.enumerate()):
            ending = threading.Event()
            threading.Thread(target=_end, args=(ending, status), daemon=True).start()
            atexit.register(ending.set)  # called before what packages have registered


def _end(ending: threading.Event, status: int) -> None:
    ending.wait()
    time.sleep(PATIENCE)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
