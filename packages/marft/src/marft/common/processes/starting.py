"""Who starts processes, and what is known of one: on this machine, or wherever a run has others."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from marft.common.errors import RunError
from marft.common.processes.child import Child, Command

MOST_AT_ONCE = 32  # processes that are being started


class NoRoomError(RunError):
    """There is no room for a process, and has been none for as long as it is waited for."""


class Started(Protocol):
    """A process of ours from outside, wherever it is."""

    name: str
    said: deque[str]  # last lines of what it printed
    socket: socket.socket  # its connection; what it let go of, or lost with its machine, is at its end here

    def end(self) -> None:
        """End it and all that it has started, in a second, whatever it is at."""
        ...

    def close(self) -> None:
        """End it, and wait until it has."""
        ...

    def outcome(self) -> str:
        """How it ended, once it has."""
        ...

    def carried(self, folder: Path) -> str:
        """Where it finds a folder of this machine, as it is now.

        Raises:
            RunError: it is gone.
        """
        ...

    def dropped(self, folder: Path) -> None:
        """It has no use any more for a folder that it was given; the folder here is somebody else's to remove."""
        ...


class Starter(Protocol):
    """Starts processes of one kind. Close it, when they have ended."""

    def start(self, name: str, command: Command, *, quiet: bool = False, place: int = 0) -> Started:
        """Start a process.

        Args:
            name: for what it prints.
            command: what is started, from the number of its end of the connection; it is asked where it runs.
            quiet: keep what it prints, without showing it.
            place: which of the places that there are for such processes it takes; whatever was there has ended.

        Raises:
            ValueError: it cannot be had there.
            NoRoomError: there is no room for it.
            RunError: it is lost at once.
        """
        ...

    @property
    def host(self) -> str:
        """This machine's address for what it starts; "": all is on this machine."""
        ...

    def close(self) -> None:
        """Give back what was kept for them."""
        ...


def start_all(starter: Starter, names: Sequence[str], command: Command) -> list[Started]:
    """Start a process in each place, all at the same time, or none.

    Args:
        names: one for each place.

    Raises:
        ValueError: one of them cannot be had.
        RunError: there is no room for one of them.
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
    """Starts them on this machine, as many as are asked for."""

    def start(self, name: str, command: Command, *, quiet: bool = False, place: int = 0) -> Child:  # noqa: ARG002
        """Start a process here."""
        return Child(name, command, quiet=quiet)

    @property
    def host(self) -> str:
        """All is here."""
        return ""

    def close(self) -> None:
        """Nothing was kept."""
