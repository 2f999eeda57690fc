"""Memory measurement of a jail, over all processes and files, for machines without a control group.

The total includes resident and swapped memory of every process below the keeper, and files in memory. For every
open file, it adds the maximum that the kernel may hold in a pipe or a socket. Memory shared between processes
counts in full for each. Only if the total exceeds the limit, a second count uses the proportional set size.
Standard library only.
"""

from __future__ import annotations

import os

SECONDS = 0.02  # interval between measurements
COUNTED = ("VmRSS:", "VmSwap:", "VmPTE:")
SHARED_OUT = ("Pss:", "SwapPss:")
GONE = (FileNotFoundError, ProcessLookupError)  # the process has just ended
BUFFER = 212_992  # bytes: net.core.wmem_default, and more than a pipe holds


def require() -> None:
    """Check for kernel support of child lists.

    Raises:
        OSError: the kernel does not report the children of a process.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        raise OSError(0, "the kernel does not tell a process's children (CONFIG_PROC_CHILDREN)", "/proc")


def too_much(keeper: int, space: int | None, limit: int) -> int:
    """Return the memory in use in bytes if it exceeds the limit, else 0.

    Args:
        keeper: process id of the keeper.
        space: descriptor of an open folder on the jail's file system, if it is in memory.
        limit: in bytes.
    """
    processes = list(below(keeper).values())
    fixed = in_files(space) if space is not None else 0
    fixed += BUFFER * sum(open_files(thread) for threads in processes for thread in threads)
    if fixed + sum(counted(threads, "status", COUNTED) for threads in processes) <= limit:
        return 0
    used = fixed + sum(counted(threads, "smaps_rollup", SHARED_OUT) for threads in processes)
    return used if used > limit else 0


def below(pid: int) -> dict[int, list[str]]:
    """Return all descendants: process id → folders of its threads in /proc."""
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
    """Return the sum of the rows with these names in a file about a process, in bytes.

    The file's rows are in kB. Threads of a process share its memory. An ended thread, even the first, reports
    nothing, so the first thread with rows counts.
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
    """Return a thread's number of open files; threads usually share them, but need not."""
    try:
        return len(os.listdir(f"{thread}/fd"))
    except GONE:
        return 0
    except PermissionError:  # the process is exiting and has no owner any more
        if counted([thread], "status", COUNTED):
            raise
        return 0


def in_files(space: int) -> int:
    """Return the size in bytes of all files on a file system."""
    state = os.statvfs(space)
    return (state.f_blocks - state.f_bfree) * state.f_frsize
