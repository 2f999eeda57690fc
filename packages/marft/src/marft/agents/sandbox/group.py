"""A control group (cgroup v2) for a jail, where the system lets us make one: the kernel then holds all processes in it,
with their shared memory, files in memory and buffers, to one limit of memory, and kills them together beyond it.

Standard library alone: the jail uses it too. See the kernel's ``Documentation/admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import os
import time

PROCESSES, SWAP_MAX = "cgroup.procs", "memory.swap.max"
NAME = "marft-jail-"
PATIENCE = 20  # hundredths of a second


def find(mounts: str = "/proc/self/mounts", own: str = "/proc/self/cgroup") -> str:
    """The folder in which a group can be made whose memory is limited; empty where there is none.

    It is the nearest to our own group that gives memory limits to its children and lets us write: our own group does
    so only where nothing runs in it.
    """
    tops = [words[1] for words in map(str.split, _lines(mounts)) if words[2:3] == ["cgroup2"]]
    paths = [line.removeprefix("0::").strip("/") for line in _lines(own) if line.startswith("0::")]
    if not tops or not paths or ".." in paths[0].split("/"):
        return ""
    folder = os.path.join(tops[0], paths[0]).rstrip("/")
    while folder.startswith(tops[0].rstrip("/")):
        gives = " ".join(_lines(os.path.join(folder, "cgroup.subtree_control"))).split()
        if "memory" in gives and all(os.access(p, os.W_OK) for p in (folder, os.path.join(folder, PROCESSES))):
            return folder
        folder = os.path.dirname(folder)
    return ""


def make(parent: str, memory_mb: int) -> str:
    """Make a group of our process's name → its folder, or nothing where the system does not let us."""
    folder = path_of(parent, os.getpid())
    try:
        os.mkdir(folder)
        _write(folder, "memory.max", str(memory_mb << 20))
        _write(folder, "memory.oom.group", "1")
        if os.path.exists(os.path.join(folder, SWAP_MAX)):  # not where the kernel does not count swap
            _write(folder, SWAP_MAX, "0")
    except OSError:
        remove(folder)
        return ""
    return folder


def join(folder: str, pid: int) -> bool:
    """Put a process, and all that come of it, into a group, if there is one → whether it is in there."""
    if not folder:
        return False
    try:
        _write(folder, PROCESSES, str(pid))
    except OSError:
        return False
    return True


def remove(folder: str) -> None:
    """Remove a group, if there is one, as soon as nothing runs in it."""
    for _ in range(PATIENCE):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:  # somebody in there is just dying
            time.sleep(0.01)


def path_of(parent: str, pid: int) -> str:
    """The folder of the jail that a process keeps; nothing where no group can be made."""
    return os.path.join(parent, f"{NAME}{pid}") if parent else ""


def _write(folder: str, file: str, text: str) -> None:
    with open(os.path.join(folder, file), "w", encoding="utf-8") as opened:
        opened.write(text)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
