"""Process starters and the interface to a started process, on this machine or on others."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from marft.common.errors import RunError
from marft.common.processes.child import Child, Command

MOST_AT_ONCE = 32  # maximum number of processes starting in parallel


class NoRoomError(RunError):
    """Timeout while waiting for enough resources to start a process."""


class Started(Protocol):
    """Interface to a started process, local or remote."""

    name: str
    said: deque[str]  # last lines of output
    socket: socket.socket  # the connection; it reads as closed after the process closes its end or its machine is lost

    def end(self) -> None:
        """Terminate the process and its descendants within a second."""
        ...

    def close(self) -> None:
        """Terminate the process and wait for its end."""
        ...

    def outcome(self) -> str:
        """Return how the process ended: its exit status or signal."""
        ...

    def carried(self, folder: Path) -> str:
        """Return the process's path for the current content of a folder on this machine.

        Raises:
            RunError: the process is gone.
        """
        ...

    def dropped(self, folder: Path) -> None:
        """Release the process's copy of a folder. The caller removes the folder on this machine."""
        ...


class Starter(Protocol):
    """Process starter. Close it after all its processes have ended."""

    def start(self, name: str, command: Command, *, quiet: bool = False, place: int = 0) -> Started:
        """Start a process.

        Args:
            name: label of its output.
            command: builds the command from the file descriptor of its end of the connection; called where the process
                runs.
            quiet: keep the output without showing it.
            place: index of the slot for the process; a previous process in the slot has ended.

        Raises:
            ValueError: the process cannot run in this slot.
            NoRoomError: no resources became free in time.
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


def start_all(starter: Starter, names: Sequence[str], command: Command) -> list[Started]:
    """Start a process in each slot, in parallel. If a start fails, close all others.

    Args:
        names: names of the processes, one per slot.

    Raises:
        ValueError: a process cannot run in its slot.
        RunError: a process could not start.
    """
    with ThreadPoolExecutor(min(len(names), MOST_AT_ONCE)) as threads:
        starting = [threads.submit(starter.start, name, command, place=place) for place, name in enumerate(names)]
    failures = [error for one in starting if (error := one.exception())]
    if failures:
        for one in starting:
            if not one.exception():
                one.result().close()
        raise failures[0]
    return [one.result() for one in starting]


class LocalStarter:
    """Starter on this machine, without a limit on processes."""

    def start(self, name: str, command: Command, *, quiet: bool = False, place: int = 0) -> Child:  # noqa: ARG002
        """Start a process on this machine."""
        return Child(name, command, quiet=quiet)

    @property
    def host(self) -> str:
        """Empty: all processes are local."""
        return ""

    def close(self) -> None:
        """No-op: no resources are reserved."""
