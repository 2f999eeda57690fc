"""Remote end of a relayed process: an actor that starts the process and passes on its data."""

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

from marft.common.processes.child_process import ChildProcess, Command
from marft.common.processes.weight_transfer import SharedFolder
from marft.common.version import __version__

CHUNK_BYTES = 2**18  # bytes per read
MAX_BUFFER_BYTES = 4 * 2**20  # maximum buffered bytes; further output waits
MAX_BUFFER_LINES = 1000  # maximum buffered lines
IDLE_SECONDS = 5.0  # timeout of a read; without output the read returns empty data
# concurrency groups with one thread each, in which calls keep their order
CONCURRENCY_GROUPS = {"in": 1, "out": 1, "end": 1}


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Software versions and missing folders of a node."""

    node: str
    python: str
    version: str  # version of MARFT
    missing: tuple[str, ...]  # requested folders that do not exist on the node


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """Output of a process since the previous read.

    Args:
        data: bytes from the connection.
        lines: printed lines.
        closed: True if the connection is closed.
    """

    data: bytes = b""
    lines: tuple[str, ...] = ()
    closed: bool = False


def read_node_info(folders: Sequence[str] = ()) -> NodeInfo:
    """Return information about this node.

    Args:
        folders: folders that should exist.
    """
    missing = tuple(folder for folder in folders if not Path(folder).is_dir())
    return NodeInfo(socket.gethostname(), platform.python_version(), __version__, missing)


class Relay:
    """Actor that runs a process for a run on another machine.

    Bytes keep their order in both directions. Buffers are bounded.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._data, self._lines, self._closed = bytearray(), list[str](), False
        self._folder: SharedFolder | None = None
        self._child: ChildProcess | None = None

    def node_info(self, folders: Sequence[str]) -> NodeInfo:
        """Return information about this node."""
        return read_node_info(folders)

    def begin(self, name: str, command: Command, path: Sequence[str], folder: str) -> None:
        """Start the process.

        Args:
            name: name of the process, for messages.
            command: command to start.
            path: module search path of the run. Folders that exist on this node are appended to the local path.
            folder: working folder of the run; used as working folder if the folder exists on this node.

        Raises:
            ValueError: the process cannot be started on this node.
        """
        ray_paths = {"", folder} - set(path)  # Ray adds the working folder to the path
        sys.path[:] = [entry for entry in sys.path if entry not in ray_paths]
        sys.path += [entry for entry in path if entry not in sys.path and Path(entry).is_dir()]
        with suppress(OSError):
            os.chdir(folder)
        self._child = ChildProcess(name, command, on_line=self._add_line)
        threading.Thread(target=self._listen, args=(self._child,), name="marft-relay", daemon=True).start()

    def _listen(self, child: ChildProcess) -> None:
        data = b"begun"
        while data:
            try:
                data = child.socket.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            with self._changed:
                self._changed.wait_for(lambda: len(self._data) < MAX_BUFFER_BYTES)
                self._data += data
                self._closed = not data
                self._changed.notify_all()

    def _add_line(self, line: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) < MAX_BUFFER_LINES or self._closed)
            self._lines.append(line)
            self._changed.notify_all()

    def read_output(self) -> ProcessOutput:
        """Return new output; wait up to ``IDLE_SECONDS`` seconds for output."""
        with self._changed:
            self._changed.wait_for(lambda: self._data or self._lines or self._closed, IDLE_SECONDS)
            return self._take_output()

    def _take_output(self) -> ProcessOutput:
        output = ProcessOutput(bytes(self._data), tuple(self._lines), self._closed)
        self._data.clear()
        self._lines.clear()
        self._changed.notify_all()
        return output

    def write_input(self, data: bytes) -> None:
        """Write data to the process; empty data closes the input."""
        assert self._child is not None
        with suppress(OSError):  # the process has exited; a read reports the exit
            if data:
                self._child.socket.sendall(data)
            else:
                self._child.socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Terminate the process."""
        assert self._child is not None
        self._child.end()

    def wait_or_terminate(self) -> tuple[str, Sequence[str]]:
        """Wait for the process to exit; return the outcome and the last printed lines."""
        assert self._child is not None
        outcome = self._child.wait_or_terminate()
        self._child.socket.close()
        if self._folder:
            self._folder.close()
        with self._changed:
            return outcome, self._take_output().lines

    def folder(self, name: str) -> str:
        """Create an empty folder and return its path, in memory if the space suffices."""
        self._folder = self._folder or SharedFolder()
        path = self._folder.path / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return str(path)

    def write(self, name: str, file: str, chunk: bytes) -> None:
        """Append a chunk to a file in a folder."""
        assert self._folder is not None
        path = self._folder.path / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as target:
            target.write(chunk)

    def drop(self, name: str) -> None:
        """Remove a folder."""
        if self._folder:
            shutil.rmtree(self._folder.path / name, ignore_errors=True)
