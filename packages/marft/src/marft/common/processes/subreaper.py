"""Run a command that ends, with all that it has started, when the process that asked for it does.

``python subreaper.py PARENT COMMAND …`` exits as the command does. Standard library alone, and little of it: every
server waits for this to start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36  # of prctl
PARENT_IS_GONE = signal.SIGUSR1
ENDING = (PARENT_IS_GONE, signal.SIGALRM, signal.SIGINT)
GRACE_SECONDS = 1  # for a command that is asked to end
TICK_SECONDS = 0.01
TRACKER = b"from multiprocessing.resource_tracker import main"
NOT_FOUND = 127  # as a shell has it


class NotNeededError(Exception):
    """Nobody needs the command any more."""


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if not sys.platform.startswith("linux"):
        os.execvp(command[0], command)
    prctl = ctypes.CDLL(None).prctl
    prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    for number in ENDING:
        signal.signal(number, end)
    prctl(DIE_WITH_PARENT, PARENT_IS_GONE, 0, 0, 0)
    if os.getppid() != parent:  # it had gone before we asked
        return
    status = NOT_FOUND
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is a command to pass it on to
    try:
        child = os.fork()
        if child == 0:
            prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            become(command)
        signal.signal(signal.SIGTERM, lambda *_: ask_to_end(child))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for stream in (0, 1):
            os.close(stream)  # they are the command's
        status = wait_for(child)
    except NotNeededError:
        status = 128 + signal.SIGKILL
    finally:
        end_all()
        os._exit(status)


def become(command: list[str]) -> None:
    for number in (signal.SIGPIPE, *ENDING):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND)


def wait_for(child: int) -> int:
    """The command's exit status; 128 and the signal where one has ended it."""
    while True:
        pid, status = os.wait()  # orphans of the command come to us
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def ask_to_end(child: int) -> None:
    signal.alarm(GRACE_SECONDS)
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(child, signal.SIGTERM)


def end(*_: object) -> None:
    """Stop waiting. The signal can come once for every thread of the parent that dies: it is heeded once, or the next
    one would end us before we have ended the rest."""
    ignore()
    raise NotNeededError


def ignore() -> None:
    for number in (*ENDING, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def end_all() -> None:
    """Kill what is left. The children of whatever dies become ours, and are next. Trackers of ``multiprocessing`` end
    by themselves, and take away the shared memory that the dead have left: they have ``GRACE_SECONDS`` for it."""
    ignore()
    until = time.monotonic() + GRACE_SECONDS
    while True:
        late = time.monotonic() > until
        for pid in children():
            if late or not is_tracker(pid):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(TICK_SECONDS)
        except ChildProcessError:
            return


def is_tracker(pid: int) -> bool:
    """Whether it is the process that Python's ``multiprocessing`` has to take away what others leave."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return TRACKER in file.read()
    except OSError:  # it has just ended
        return False


def children() -> list[int]:
    """Processes whose parent we are, those that have ended but were not waited for included."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        if parent == os.getpid():
            found.append(int(name))
    return found


if __name__ == "__main__":
    main()
