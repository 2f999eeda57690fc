"""Process launchers and the interface to a started process, on this machine or on others."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from marft.common.errors import RunError
from marft.common.processes.child_process import ChildProcess, Command

MAX_PARALLEL_STARTS = 32  # maximum number of processes starting in parallel


class NoResourcesError(RunError):
    """Timeout while waiting for enough resources to start a process."""


class ProcessHandle(Protocol):
    """Interface to a started process, local or remote."""

    name: str
    output_tail: deque[str]  # last lines of output
    socket: socket.socket  # the connection; it reads as closed after the process closes its end or its machine is lost

    def end(self) -> None:
        """Terminate the process and its descendants within a second."""
        ...

    def close(self) -> None:
        """Terminate the process and wait for its end."""
        ...

    def wait_or_terminate(self) -> str:
        """Wait for the process's end, or terminate it after a few seconds → how it ended: exit status or signal."""
        ...

    def share_folder(self, folder: Path) -> str:
        """Return the process's path for the current content of a folder on this machine.

        Raises:
            RunError: the process is gone.
        """
        ...

    def release_folder(self, folder: Path) -> None:
        """Release the process's copy of a folder. The caller removes the folder on this machine."""
        ...


class Launcher(Protocol):
    """Process launcher. Close it after all its processes have ended."""

    def start(self, name: str, command: Command, *, quiet: bool = False, slot: int = 0) -> ProcessHandle:
        """Start a process.

        Args:
            name: label of its output.
            command: builds the command from the file descriptor of its end of the connection; called where the process
                runs.
            quiet: keep the output without showing it.
            slot: index of the slot for the process; a previous process in the slot has ended.

        Raises:
            ValueError: the process cannot run in this slot.
            NoResourcesError: no resources became free in time.
            RunError: the process was lost immediately.
        """
        ...

    @property
    def host(self) -> str:
        """This machine's address for started processes; "" for local processes only."""
        ...

    def close(self) -> None:
        """Release reserved resources."""
        ...


def start_all(launcher: Launcher, names: Sequence[str], command: Command) -> list[ProcessHandle]:
    """Start a process in each slot, in parallel. If a start fails, close all others.

    Args:
        names: names of the processes, one per slot.

    Raises:
        ValueError: a process cannot run in its slot.
        RunError: a process could not start.
    """
    with ThreadPoolExecutor(min(len(names), MAX_PARALLEL_STARTS)) as threads:
        futures = [threads.submit(launcher.start, name, command, slot=slot) for slot, name in enumerate(names)]
    failures = [error for future in futures if (error := future.exception())]
    if failures:
        for future in futures:
            if not future.exception():
                future.result().close()
        raise failures[0]
    return [future.result() for future in futures]


class LocalLauncher:
    """Launcher on this machine, without a limit on processes."""

    def start(self, name: str, command: Command, *, quiet: bool = False, slot: int = 0) -> ChildProcess:  # noqa: ARG002
        """Start a process on this machine."""
        return ChildProcess(name, command, quiet=quiet)

    @property
    def host(self) -> str:
        """Empty: all processes are local."""
        return ""

    def close(self) -> None:
        """No-op: no resources are reserved."""
