"""How much memory a jail uses, all its processes and files together; for machines that give it no control group.

Resident and swapped memory of every process below the keeper, its page tables, the files in memory, and for every open
file what the kernel may hold back in a pipe or a socket. Memory that processes share is counted in full for each, and
only if that exceeds the limit, page by page (proportional set size). Standard library alone.
"""

from __future__ import annotations

import os

SECONDS = 0.02  # between two looks
COUNTED = ("VmRSS:", "VmSwap:", "VmPTE:")
SHARED_OUT = ("Pss:", "SwapPss:")
BUFFER = 212_992  # bytes: net.core.wmem_default, and more than a pipe holds


def require() -> None:
    """Make sure that the kernel tells who a process's children are.

    Raises:
        OSError: it does not.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        raise OSError(0, "the kernel does not tell a process's children (CONFIG_PROC_CHILDREN)", "/proc")


def too_much(keeper: int, space: int | None, limit: int) -> int:
    """Bytes in use where they are more than the limit, else 0.

    Args:
        space: an open folder of the jail's file system, if that is in memory.
    """
    pids = below(keeper)
    fixed = (in_files(space) if space is not None else 0) + BUFFER * sum(open_files(pid) for pid in pids)
    if fixed + sum(counted(pid, "status", COUNTED) for pid in pids) <= limit:
        return 0
    used = fixed + sum(counted(pid, "smaps_rollup", SHARED_OUT) + counted(pid, "status", COUNTED[2:]) for pid in pids)
    return used if used > limit else 0


def below(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found: list[int] = []
    unseen = [pid]
    while unseen:
        one = unseen.pop()
        try:
            for thread in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{thread}/children", encoding="ascii") as file:
                    children = [int(child) for child in file.read().split()]
                found += children
                unseen += children
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    return found


def counted(pid: int, file: str, names: tuple[str, ...]) -> int:
    """Bytes: the sum of some rows in kB of a file about a process, which may have ended."""
    try:
        with open(f"/proc/{pid}/{file}", encoding="utf-8", errors="replace") as opened:
            return sum(int(line.split()[1]) << 10 for line in opened if line.startswith(names))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def in_files(space: int) -> int:
    """Bytes in the files of a file system."""
    state = os.statvfs(space)
    return (state.f_blocks - state.f_bfree) * state.f_frsize
