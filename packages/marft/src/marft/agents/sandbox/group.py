"""Control group (cgroup v2) for a jail, if the system permits one.

The kernel then applies one memory limit to all processes of the jail, including shared memory, files in memory and
buffers. Beyond the limit, the kernel kills all of them together.

Standard library only, since the jail uses this module too. See the kernel's
``Documentation/admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import os
import time

PROCESSES, SWAP_MAX = "cgroup.procs", "memory.swap.max"
NAME = "marft-jail-"
PATIENCE = 20  # attempts at removing a group, 10 ms apart


def find(mounts: str = "/proc/self/mounts", own: str = "/proc/self/cgroup") -> str:
    """Return the folder for new groups with a memory limit, or "" if the system permits none.

    This is the nearest ancestor of our own group that delegates memory limits to its children and is writable. Our
    own group qualifies only if no process runs in it.
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
    """Create a group named after our process, and return its folder, or "" if the system refuses."""
    folder = path_of(parent, os.getpid())
    try:
        os.mkdir(folder)
        _write(folder, "memory.max", str(memory_mb << 20))
        _write(folder, "memory.oom.group", "1")
        if os.path.exists(os.path.join(folder, SWAP_MAX)):  # absent if the kernel does not account for swap
            _write(folder, SWAP_MAX, "0")
    except OSError:
        remove(folder)
        return ""
    return folder


def join(folder: str, pid: int) -> bool:
    """Add a process and its future descendants to a group; return true on success, false without a group."""
    if not folder:
        return False
    try:
        _write(folder, PROCESSES, str(pid))
    except OSError:
        return False
    return True


def remove(folder: str) -> None:
    """Remove a group after its last process; give up after ``PATIENCE`` attempts."""
    for _ in range(PATIENCE):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:  # a process in the group is still exiting
            time.sleep(0.01)


def path_of(parent: str, pid: int) -> str:
    """Return the folder for the jail that a process keeps, or "" without groups."""
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
