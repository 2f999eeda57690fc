"""Proxy of a process on another machine; its data passes through calls of a Ray actor."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from marft.common.errors import RunError
from marft.common.processes.child_process import END_SECONDS, OUTPUT_TAIL_LINES, print_line
from marft.common.texts import single_line
from marft_lab.cluster.relay import ProcessOutput

CHUNK_BYTES = 2**18  # bytes per call
FILE_CHUNK_BYTES = 8 * 2**20  # bytes per call of a file transfer
MAX_PENDING_WRITES = 4  # maximum pending calls that write input
PENDING_READS = 2


class RemoteProcess:
    """Proxy of a process on another machine, with the interface of
    :class:`~marft.common.processes.child_process.ChildProcess`.

    The connection and the output lines of the process are available locally.

    Args:
        name: name of the process, for messages.
        actor: :class:`~marft_lab.cluster.relay.Relay` with a started process.
        node: node of the actor, for messages.
        quiet: True to keep the output without showing the output.
    """

    def __init__(self, name: str, actor: Any, node: str, *, quiet: bool = False) -> None:
        self.name, self.node, self.quiet = name, node, quiet
        self.output_tail: deque[str] = deque(maxlen=OUTPUT_TAIL_LINES)
        self.socket, self._peer_socket = socket.socketpair()
        self._actor = actor
        self._outcome = ""
        self._outcome_lock = threading.Lock()
        self._closed = threading.Event()
        self._forwarders = [
            threading.Thread(target=forwarder, name="marft-relay", daemon=True)
            for forwarder in (self._forward_output, self._forward_input)
        ]
        for forwarder in self._forwarders:
            forwarder.start()

    def end(self) -> None:
        """Terminate the process and its children within a second.

        If the machine does not answer, the actor is killed after twice ``END_SECONDS``.
        """
        self._call("end", "end")
        threading.Thread(target=self._kill_if_stuck, name="marft-relay", daemon=True).start()

    def _kill_if_stuck(self) -> None:
        if not self._closed.wait(2 * END_SECONDS):
            self._kill()

    def close(self) -> None:
        """Terminate the process, wait for its exit and close the connection."""
        self.end()
        self.outcome()
        self.socket.close()

    def outcome(self) -> str:
        """Wait for the process to exit and return the outcome; then stop the actor."""
        with self._outcome_lock:
            if not self._outcome:
                self._outcome = self._wait_for_outcome()
                self._closed.wait(END_SECONDS)  # until all output has arrived
                self._kill()
                with suppress(OSError):
                    self._peer_socket.shutdown(socket.SHUT_RDWR)
                for forwarder in self._forwarders:
                    forwarder.join(END_SECONDS)
                self._peer_socket.close()
            return self._outcome

    def _wait_for_outcome(self) -> str:
        try:
            outcome, lines = ray.get(self._actor.outcome.remote())
        except RayError as error:
            return f"was lost with its place on node {self.node} ({_describe_error(error)})"
        self._show_lines(lines)
        return f"{outcome} on node {self.node}"

    def _kill(self) -> None:
        with suppress(RayError, RuntimeError, ValueError):  # the actor or the cluster is gone
            ray.kill(self._actor)

    def share_folder(self, folder: Path) -> str:
        """Copy a folder to the node, file by file, in bounded chunks.

        Returns:
            The path of the copy on the node.

        Raises:
            RunError: the process is gone.
        """
        try:
            remote_path: str = ray.get(self._actor.folder.remote(folder.name))
            pending: deque[Any] = deque()
            for name, chunk in _read_chunks(folder):
                pending.append(self._actor.write.remote(folder.name, name, chunk))
                if len(pending) > 1:
                    ray.get(pending.popleft())
            ray.get(list(pending))
        except RayError as error:
            raise RunError(
                f"{self.name}: weights cannot be carried to node {self.node}: {_describe_error(error)}"
            ) from error
        return remote_path

    def release_folder(self, folder: Path) -> None:
        """Remove a copied folder from the node."""
        with suppress(RayError):
            self._actor.drop.remote(folder.name)

    # Data transfer in both directions.

    def _call(self, group: str, method: str, *arguments: object) -> Any:
        return getattr(self._actor, method).options(concurrency_group=group).remote(*arguments)

    def _forward_output(self) -> None:
        """Forward data and output lines of the process to the run, until the connection closes."""
        pending = deque(self._call("out", "read_output") for _ in range(PENDING_READS))
        output = ProcessOutput()
        try:
            while not output.closed:
                output = ray.get(pending.popleft())
                pending.append(self._call("out", "read_output"))
                self._show_lines(output.lines)
                with suppress(OSError):  # the run has closed the connection; lines are still shown
                    self._peer_socket.sendall(output.data)
            for last_read in pending:  # output printed during exit
                self._show_lines(ray.get(last_read).lines)
        except (RayError, RuntimeError):  # the actor or the connection to the cluster is gone
            pass
        finally:
            self._closed.set()
            with suppress(OSError):
                self._peer_socket.shutdown(socket.SHUT_WR)

    def _forward_input(self) -> None:
        """Forward data of the run to the process, until the run closes the connection."""
        pending: deque[Any] = deque()
        data = b"begun"
        try:
            while data:
                try:
                    data = self._peer_socket.recv(CHUNK_BYTES)
                except OSError:
                    data = b""
                pending.append(self._call("in", "write_input", data))
                if len(pending) > MAX_PENDING_WRITES:
                    ray.get(pending.popleft())
        except (RayError, RuntimeError):
            with suppress(OSError):
                self._peer_socket.shutdown(socket.SHUT_RD)

    def _show_lines(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            self.output_tail.append(line)
            if not self.quiet:
                print_line(self.name, line)


def _read_chunks(folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as source:
            chunk = b"begun"
            while chunk:
                chunk = source.read(FILE_CHUNK_BYTES)
                yield file.relative_to(folder).as_posix(), chunk


def _describe_error(error: Exception) -> str:
    return single_line(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
