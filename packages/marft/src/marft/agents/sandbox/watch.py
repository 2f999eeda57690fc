"""How much memory a jail uses, all its processes and files together; for machines that give it no control group.

Resident and swapped memory of every process below the keeper, the files in memory, and for every open file what the
kernel may hold back in a pipe or a socket. Memory that processes share is counted in full for each, and only if that
exceeds the limit, page by page (proportional set size). Standard library alone.
"""

from __future__ import annotations

import os

SECONDS = 0.02  # between two looks
COUNTED = ("VmRSS:", "VmSwap:", "VmPTE:")
SHARED_OUT = ("Pss:", "SwapPss:")
GONE = (FileNotFoundError, ProcessLookupError)  # it has just ended
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
    processes = list(below(keeper).values())
    fixed = in_files(space) if space is not None else 0
    fixed += BUFFER * sum(open_files(thread) for threads in processes for thread in threads)
    if fixed + sum(counted(threads, "status", COUNTED) for threads in processes) <= limit:
        return 0
    used = fixed + sum(counted(threads, "smaps_rollup", SHARED_OUT) for threads in processes)
    return used if used > limit else 0


def below(pid: int) -> dict[int, list[str]]:
    """Children, their children, and so on: process → folders of its threads."""
    found: dict[int, list[str]] = {}
    unseen = [pid]
    while unseen:
        one = unseen.pop()
        try:
            found[one] = [f"/proc/{one}/task/{thread}" for thread in os.listdir(f"/proc/{one}/task")]
            for thread in found[one]:
                with open(f"{thread}/children", encoding="ascii") as file:
                    unseen += map(int, file.read().split())
        except GONE:
            continue
    found.pop(pid, None)
    return found


def counted(threads: list[str], file: str, names: tuple[str, ...]) -> int:
    """Bytes: the sum of some rows in kB of a file about a process.

    The threads of a process share its memory, and one that has ended tells nothing any more, the first one included.
    """
    for thread in threads:
        try:
            with open(f"{thread}/{file}", encoding="utf-8", errors="replace") as opened:
                rows = [int(line.split()[1]) << 10 for line in opened if line.startswith(names)]
        except GONE:
            continue
        if rows:
            return sum(rows)
    return 0


def open_files(thread: str) -> int:
    """What a thread holds open: they share that mostly, but need not."""
    try:
        return len(os.listdir(f"{thread}/fd"))
    except GONE:
        return 0
    except PermissionError:  # it is ending, and belongs to nobody any more
        if counted([thread], "status", COUNTED):
            raise
        return 0


def in_files(space: int) -> int:
    """Bytes in the files of a file system."""
    state = os.statvfs(space)
    return (state.f_blocks - state.f_bfree) * state.f_frsize
