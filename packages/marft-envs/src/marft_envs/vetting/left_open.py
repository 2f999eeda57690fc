"""Open resources in this process, to find leaks from sessions."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path

from marft_envs.vetting.watching import SESSIONS


def opened() -> Counter[str]:
    """Count threads, child processes and file descriptors. Session threads are excluded."""
    threads = sum(thread.name != SESSIONS for thread in threading.enumerate())
    return Counter({"threads": threads, "processes": _children(), "files": _descriptors()})


def more_than(before: Counter[str]) -> Counter[str]:
    """Return resources leaked since a count. Unreferenced resources are collected first and do not count."""
    if opened() - before:
        gc.collect()
    return opened() - before


def _children() -> int:
    me, found = str(os.getpid()), 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            found += entry.read_text().rpartition(")")[2].split()[1] == me
        except OSError:  # the process has exited
            continue
    return found


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
