"""Run a command, and end it with all descendants when the requesting process ends.

``python subreaper.py PARENT COMMAND …`` exits with the status of the command. It imports little, and only the standard
library, because every server waits for it to start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

DIE_WITH_PARENT, SET_SUBREAPER = 1, 36  # prctl options
PARENT_EXITED = signal.SIGUSR1
EXIT_SIGNALS = (PARENT_EXITED, signal.SIGALRM, signal.SIGINT)
GRACE_SECONDS = 1  # seconds for a command to end after SIGTERM
POLL_SECONDS = 0.01
RESOURCE_TRACKER = b"from multiprocessing.resource_tracker import main"
COMMAND_NOT_FOUND = 127  # exit status of a shell for an unknown command


class StopRequestedError(Exception):
    """Request to stop: the parent process has ended, or a signal arrived."""


def main() -> None:
    """Run the command given in ``sys.argv``, and kill all descendants at the end."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if not sys.platform.startswith("linux"):
        os.execvp(command[0], command)
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_SUBREAPER, 1, 0, 0, 0)
    for number in EXIT_SIGNALS:
        signal.signal(number, handle_exit_signal)
    prctl(DIE_WITH_PARENT, PARENT_EXITED, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl took effect
        return
    status = COMMAND_NOT_FOUND
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is a command to forward it to
    try:
        child = os.fork()
        if child == 0:
            prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            exec_command(command)
        signal.signal(signal.SIGTERM, lambda *_: forward_sigterm(child))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for stream in (0, 1):
            os.close(stream)  # the command uses them
        status = wait_for(child)
    except StopRequestedError:
        status = 128 + signal.SIGKILL
    finally:
        kill_descendants()
        os._exit(status)


def exec_command(command: list[str]) -> None:
    """Replace this process by the command, with default signal handlers."""
    for number in (signal.SIGPIPE, *EXIT_SIGNALS):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(COMMAND_NOT_FOUND)


def wait_for(child: int) -> int:
    """Return the command's exit status; 128 plus the signal number for a killed command."""
    while True:
        pid, status = os.wait()  # orphans of the command are adopted by this process
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def forward_sigterm(child: int) -> None:
    """Forward SIGTERM to the command and start the grace period."""
    signal.alarm(GRACE_SECONDS)
    with suppress(ProcessLookupError):  # the command has already ended
        os.kill(child, signal.SIGTERM)


def handle_exit_signal(*_: object) -> None:
    """Stop waiting for the command.

    The signal can arrive once for each dying thread of the parent. Later signals are ignored, because one of them would
    end this process before all descendants are killed.
    """
    ignore_exit_signals()
    raise StopRequestedError


def ignore_exit_signals() -> None:
    """Ignore all further signals that end this process."""
    for number in (*EXIT_SIGNALS, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def kill_descendants() -> None:
    """Kill all remaining descendants.

    Children of a killed process become children of this process, and are killed next. Resource trackers of
    ``multiprocessing`` end by themselves and free the shared memory of dead processes. They have ``GRACE_SECONDS`` for
    it.
    """
    ignore_exit_signals()
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        expired = time.monotonic() > deadline
        for pid in child_pids():
            if expired or not is_resource_tracker(pid):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(POLL_SECONDS)
        except ChildProcessError:
            return


def is_resource_tracker(pid: int) -> bool:
    """Return True for the resource tracker of Python's ``multiprocessing``."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return RESOURCE_TRACKER in file.read()
    except OSError:  # the process has just ended
        return False


def child_pids() -> list[int]:
    """Return this process's child processes, zombies included."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:  # the process has just ended
            continue
        if parent == os.getpid():
            pids.append(int(name))
    return pids


if __name__ == "__main__":
    main()
