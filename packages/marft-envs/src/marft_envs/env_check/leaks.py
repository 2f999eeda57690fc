"""Open resources in this process, to find leaks from sessions."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path

from marft_envs.env_check.audit_hook import SESSION_THREADS


def count_resources() -> Counter[str]:
    """Count threads, child processes and file descriptors. Session threads are excluded."""
    threads = sum(thread.name != SESSION_THREADS for thread in threading.enumerate())
    return Counter({"threads": threads, "processes": _count_children(), "files": _count_descriptors()})


def find_leaks(before: Counter[str]) -> Counter[str]:
    """Return resources leaked since a count. Unreferenced resources are collected first and do not count."""
    if count_resources() - before:
        gc.collect()
    return count_resources() - before


def _count_children() -> int:
    own_pid, count = str(os.getpid()), 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            count += entry.read_text().rpartition(")")[2].split()[1] == own_pid
        except OSError:  # the process has exited
            continue
    return count


def _count_descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
