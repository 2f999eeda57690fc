"""Memory measurement of a jail, over all processes and files, for machines without a control group.

The total includes resident and swapped memory of every process below the keeper, and files in memory. For every
open file, it adds the maximum that the kernel may hold in a pipe or a socket. Memory shared between processes
counts in full for each. Only if the total exceeds the limit, a second count uses the proportional set size.
Standard library only.
"""

from __future__ import annotations

import os

INTERVAL_SECONDS = 0.02  # interval between measurements
RESIDENT_FIELDS = ("VmRSS:", "VmSwap:", "VmPTE:")
SHARED_FIELDS = ("Pss:", "SwapPss:")
EXIT_ERRORS = (FileNotFoundError, ProcessLookupError)  # the process has just ended
BUFFER_BYTES = 212_992  # bytes: net.core.wmem_default, and more than a pipe holds


def check_support() -> None:
    """Check for kernel support of child lists.

    Raises:
        OSError: the kernel does not report the children of a process.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        raise OSError(0, "the kernel does not tell a process's children (CONFIG_PROC_CHILDREN)", "/proc")


def memory_over_limit(parent_pid: int, space: int | None, limit: int) -> int:
    """Return the memory in use in bytes if it exceeds the limit, else 0.

    Args:
        parent_pid: process id of the keeper.
        space: descriptor of an open folder on the jail's file system, if it is in memory.
        limit: in bytes.
    """
    processes = list(find_descendants(parent_pid).values())
    fixed = file_bytes(space) if space is not None else 0
    fixed += BUFFER_BYTES * sum(count_open_files(thread) for threads in processes for thread in threads)
    if fixed + sum(sum_fields(threads, "status", RESIDENT_FIELDS) for threads in processes) <= limit:
        return 0
    used = fixed + sum(sum_fields(threads, "smaps_rollup", SHARED_FIELDS) for threads in processes)
    return used if used > limit else 0


def find_descendants(pid: int) -> dict[int, list[str]]:
    """Return all descendants: process id → folders of its threads in /proc."""
    processes: dict[int, list[str]] = {}
    pending = [pid]
    while pending:
        child = pending.pop()
        try:
            processes[child] = [f"/proc/{child}/task/{thread}" for thread in os.listdir(f"/proc/{child}/task")]
            for thread in processes[child]:
                with open(f"{thread}/children", encoding="ascii") as file:
                    pending += map(int, file.read().split())
        except EXIT_ERRORS:
            continue
    processes.pop(pid, None)
    return processes


def sum_fields(threads: list[str], file: str, names: tuple[str, ...]) -> int:
    """Return the sum of the rows with these names in a file about a process, in bytes.

    The file's rows are in kB. Threads of a process share its memory. An ended thread, even the first, reports
    nothing, so the first thread with rows counts.
    """
    for thread in threads:
        try:
            with open(f"{thread}/{file}", encoding="utf-8", errors="replace") as opened:
                rows = [int(line.split()[1]) << 10 for line in opened if line.startswith(names)]
        except EXIT_ERRORS:
            continue
        if rows:
            return sum(rows)
    return 0


def count_open_files(thread: str) -> int:
    """Return a thread's number of open files; threads usually share them, but need not."""
    try:
        return len(os.listdir(f"{thread}/fd"))
    except EXIT_ERRORS:
        return 0
    except PermissionError:  # the process is exiting and has no owner any more
        if sum_fields([thread], "status", RESIDENT_FIELDS):
            raise
        return 0


def file_bytes(space: int) -> int:
    """Return the size in bytes of all files on a file system."""
    state = os.statvfs(space)
    return (state.f_blocks - state.f_bfree) * state.f_frsize
