"""Detection of external access by sessions: connections and started programs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

OUTSIDE_EVENTS = {
    "socket.connect": "connects to",
    "socket.getaddrinfo": "looks up",
    "subprocess.Popen": "starts",
    "os.system": "starts",
    "os.posix_spawn": "starts",
    "os.fork": "forks",
}
SESSION_THREADS = "marft-session"  # name of session threads
_LISTENERS: list[list[str]] = []


@contextmanager
def watch_outside_access() -> Iterator[list[str]]:
    """Collect descriptions for external access by sessions, until the context exits."""
    _install_hook()
    accesses: list[str] = []
    _LISTENERS.append(accesses)
    try:
        yield accesses
    finally:
        _LISTENERS.remove(accesses)


@cache
def _install_hook() -> None:
    """Install the audit hook once per process. Python cannot remove audit hooks."""
    sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[object, ...]) -> None:
    if _LISTENERS and event in OUTSIDE_EVENTS and threading.current_thread().name == SESSION_THREADS:
        target = arguments[1] if event == "socket.connect" else arguments[0] if arguments else "itself"
        for accesses in _LISTENERS:
            accesses.append(f"{OUTSIDE_EVENTS[event]} {target!s:.80}")
