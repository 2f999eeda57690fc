"""The end of a relayed process that is where the process is: an actor that starts it and passes on what it says."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from marft.common.processes.child import Child, Command
from marft.common.processes.handover import SharedFolder
from marft.common.version import __version__

PIECE = 2**18  # bytes that are read at a time
LARGEST = 4 * 2**20  # bytes that wait to be drawn; what says more waits
MOST_LINES = 1000  # that wait
IDLE_SECONDS = 5.0  # in which a draw comes back, with nothing where nothing was said
GROUPS = {"in": 1, "out": 1, "end": 1}  # threads of their own, in which calls keep their order


@dataclass(frozen=True, slots=True)
class About:
    """What is there."""

    node: str
    python: str
    version: str  # of MARFT
    missing: tuple[str, ...]  # folders that are not


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a process has said since the draw before.

    Args:
        over: it says nothing more over its connection.
    """

    data: bytes = b""
    lines: tuple[str, ...] = ()
    over: bool = False


def about(folders: Sequence[str] = ()) -> About:
    """What is here.

    Args:
        folders: that should be.
    """
    missing = tuple(folder for folder in folders if not Path(folder).is_dir())
    return About(socket.gethostname(), platform.python_version(), __version__, missing)


class Relay:
    """A process of a run that is elsewhere. Bytes keep their order in both directions, and few of them wait here."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._data, self._lines, self._over = bytearray(), list[str](), False
        self._folder: SharedFolder | None = None
        self._child: Child | None = None

    def look(self, folders: Sequence[str]) -> About:
        """What is on this machine."""
        return about(folders)

    def begin(self, name: str, command: Command, path: Sequence[str], folder: str) -> None:
        """Start the process.

        Args:
            path: where the run finds modules: those folders that are here too are looked in last.
            folder: that the run is in; so is the process, where it is here too.

        Raises:
            ValueError: it cannot be had here.
        """
        theirs = {"", folder} - set(path)  # Ray puts the working folder on the path
        sys.path[:] = [entry for entry in sys.path if entry not in theirs]
        sys.path += [entry for entry in path if entry not in sys.path and Path(entry).is_dir()]
        with suppress(OSError):
            os.chdir(folder)
        self._child = Child(name, command, hear=self._hear)
        threading.Thread(target=self._listen, args=(self._child,), name="marft-relay", daemon=True).start()

    def _listen(self, child: Child) -> None:
        data = b"begun"
        while data:
            try:
                data = child.socket.recv(PIECE)
            except OSError:
                data = b""
            with self._changed:
                self._changed.wait_for(lambda: len(self._data) < LARGEST)
                self._data += data
                self._over = not data
                self._changed.notify_all()

    def _hear(self, line: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) < MOST_LINES or self._over)
            self._lines.append(line)
            self._changed.notify_all()

    def draw(self) -> Drawn:
        """What was said; waits for something, but not for ever."""
        with self._changed:
            self._changed.wait_for(lambda: self._data or self._lines or self._over, IDLE_SECONDS)
            return self._taken()

    def _taken(self) -> Drawn:
        drawn = Drawn(bytes(self._data), tuple(self._lines), self._over)
        self._data.clear()
        self._lines.clear()
        self._changed.notify_all()
        return drawn

    def feed(self, data: bytes) -> None:
        """Say something to it; nothing: there is no more."""
        assert self._child is not None
        with suppress(OSError):  # it has ended, which a draw will tell
            if data:
                self._child.socket.sendall(data)
            else:
                self._child.socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """End it."""
        assert self._child is not None
        self._child.end()

    def outcome(self) -> tuple[str, Sequence[str]]:
        """How it ended, once it has, and the last lines that it said."""
        assert self._child is not None
        how = self._child.outcome()
        self._child.socket.close()
        if self._folder:
            self._folder.close()
        with self._changed:
            return how, self._taken().lines

    def folder(self, name: str) -> str:
        """Make an empty folder, in memory where there is room for it."""
        self._folder = self._folder or SharedFolder()
        place = self._folder.path / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return str(place)

    def write(self, name: str, file: str, piece: bytes) -> None:
        """Put another piece at the end of a file in a folder."""
        assert self._folder is not None
        place = self._folder.path / name / file
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("ab") as opened:
            opened.write(piece)

    def drop(self, name: str) -> None:
        """Take a folder away."""
        if self._folder:
            shutil.rmtree(self._folder.path / name, ignore_errors=True)
