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
NAME_PREFIX = "marft-jail-"
REMOVE_ATTEMPTS = 20  # attempts at removing a group, 10 ms apart


def find_parent(mount_file: str = "/proc/self/mounts", group_file: str = "/proc/self/cgroup") -> str:
    """Return the folder for new groups with a memory limit, or "" if the system permits none.

    This is the nearest ancestor of our own group that delegates memory limits to its children and is writable. Our
    own group qualifies only if no process runs in it.
    """
    roots = [words[1] for words in map(str.split, _lines(mount_file)) if words[2:3] == ["cgroup2"]]
    paths = [line.removeprefix("0::").strip("/") for line in _lines(group_file) if line.startswith("0::")]
    if not roots or not paths or ".." in paths[0].split("/"):
        return ""
    folder = os.path.join(roots[0], paths[0]).rstrip("/")
    while folder.startswith(roots[0].rstrip("/")):
        controllers = " ".join(_lines(os.path.join(folder, "cgroup.subtree_control"))).split()
        if "memory" in controllers and all(os.access(p, os.W_OK) for p in (folder, os.path.join(folder, PROCESSES))):
            return folder
        folder = os.path.dirname(folder)
    return ""


def create_group(parent: str, memory_mb: int) -> str:
    """Create a group named after our process, and return its folder, or "" if the system refuses."""
    folder = group_path(parent, os.getpid())
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


def join_group(folder: str, pid: int) -> bool:
    """Add a process and its future descendants to a group; return true on success, false without a group."""
    if not folder:
        return False
    try:
        _write(folder, PROCESSES, str(pid))
    except OSError:
        return False
    return True


def remove(folder: str) -> None:
    """Remove a group after its last process; give up after ``REMOVE_ATTEMPTS`` attempts."""
    for _ in range(REMOVE_ATTEMPTS):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:  # a process in the group is still exiting
            time.sleep(0.01)


def group_path(parent: str, pid: int) -> str:
    """Return the folder for the jail that a process keeps, or "" without groups."""
    return os.path.join(parent, f"{NAME_PREFIX}{pid}") if parent else ""


def _write(folder: str, file: str, text: str) -> None:
    with open(os.path.join(folder, file), "w", encoding="utf-8") as opened:
        opened.write(text)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
