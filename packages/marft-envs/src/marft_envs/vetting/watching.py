"""Detection of external access by sessions: connections and started programs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

OUTSIDE = {
    "socket.connect": "connects to",
    "socket.getaddrinfo": "looks up",
    "subprocess.Popen": "starts",
    "os.system": "starts",
    "os.posix_spawn": "starts",
    "os.fork": "forks",
}
SESSIONS = "marft-session"  # name of session threads
_LISTENING: list[list[str]] = []


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect descriptions for external access by sessions, until the context exits."""
    _installed()
    found: list[str] = []
    _LISTENING.append(found)
    try:
        yield found
    finally:
        _LISTENING.remove(found)


@cache
def _installed() -> None:
    """Install the audit hook once per process. Python cannot remove audit hooks."""
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _LISTENING and event in OUTSIDE and threading.current_thread().name == SESSIONS:
        what = arguments[1] if event == "socket.connect" else arguments[0] if arguments else "itself"
        for found in _LISTENING:
            found.append(f"{OUTSIDE[event]} {what!s:.80}")
