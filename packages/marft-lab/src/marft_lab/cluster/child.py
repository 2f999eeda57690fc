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
from marft.common.processes.child import END_SECONDS, LAST_LINES, show
from marft.common.texts import one_line
from marft_lab.cluster.relay import Drawn

PIECE = 2**18  # bytes per call
LARGEST_PIECE = 8 * 2**20  # bytes per call of a file transfer
WAITING = 4  # maximum pending calls that write input
DRAWS = 2


class RelayedChild:
    """Proxy of a process on another machine, with the interface of :class:`~marft.common.processes.child.Child`.

    The connection and the output lines of the process are available locally.

    Args:
        name: name of the process, for messages.
        actor: :class:`~marft_lab.cluster.relay.Relay` with a started process.
        node: node of the actor, for messages.
        quiet: True to keep the output without showing the output.
    """

    def __init__(self, name: str, actor: Any, node: str, *, quiet: bool = False) -> None:
        self.name, self.node, self.quiet = name, node, quiet
        self.said: deque[str] = deque(maxlen=LAST_LINES)
        self.socket, self._theirs = socket.socketpair()
        self._actor = actor
        self._how = ""
        self._asking = threading.Lock()
        self._over = threading.Event()
        self._pumps = [
            threading.Thread(target=pump, name="marft-relay", daemon=True) for pump in (self._down, self._up)
        ]
        for pump in self._pumps:
            pump.start()

    def end(self) -> None:
        """Terminate the process and its children within a second.

        If the machine does not answer, the actor is killed after twice ``END_SECONDS``.
        """
        self._call("end", "end")
        threading.Thread(target=self._let_go, name="marft-relay", daemon=True).start()

    def _let_go(self) -> None:
        if not self._over.wait(2 * END_SECONDS):
            self._kill()

    def close(self) -> None:
        """Terminate the process, wait for its exit and close the connection."""
        self.end()
        self.outcome()
        self.socket.close()

    def outcome(self) -> str:
        """Wait for the process to exit and return the outcome; then stop the actor."""
        with self._asking:
            if not self._how:
                self._how = self._ask()
                self._over.wait(END_SECONDS)  # until all output has arrived
                self._kill()
                with suppress(OSError):
                    self._theirs.shutdown(socket.SHUT_RDWR)
                for pump in self._pumps:
                    pump.join(END_SECONDS)
                self._theirs.close()
            return self._how

    def _ask(self) -> str:
        try:
            how, lines = ray.get(self._actor.outcome.remote())
        except RayError as error:
            return f"was lost with its place on node {self.node} ({_in_words(error)})"
        self._show(lines)
        return f"{how} on node {self.node}"

    def _kill(self) -> None:
        with suppress(RayError, RuntimeError, ValueError):  # the actor or the cluster is gone
            ray.kill(self._actor)

    def carried(self, folder: Path) -> str:
        """Copy a folder to the node, file by file, in bounded chunks.

        Returns:
            The path of the copy on the node.

        Raises:
            RunError: the process is gone.
        """
        try:
            place: str = ray.get(self._actor.folder.remote(folder.name))
            waiting: deque[Any] = deque()
            for name, piece in _pieces(folder):
                waiting.append(self._actor.write.remote(folder.name, name, piece))
                if len(waiting) > 1:
                    ray.get(waiting.popleft())
            ray.get(list(waiting))
        except RayError as error:
            raise RunError(f"{self.name}: weights cannot be carried to node {self.node}: {_in_words(error)}") from error
        return place

    def dropped(self, folder: Path) -> None:
        """Remove a copied folder from the node."""
        with suppress(RayError):
            self._actor.drop.remote(folder.name)

    # Data transfer in both directions.

    def _call(self, group: str, method: str, *arguments: object) -> Any:
        return getattr(self._actor, method).options(concurrency_group=group).remote(*arguments)

    def _down(self) -> None:
        """Forward data and output lines of the process to the run, until the connection closes."""
        waiting = deque(self._call("out", "draw") for _ in range(DRAWS))
        drawn = Drawn()
        try:
            while not drawn.over:
                drawn = ray.get(waiting.popleft())
                waiting.append(self._call("out", "draw"))
                self._show(drawn.lines)
                with suppress(OSError):  # the run has closed the connection; lines are still shown
                    self._theirs.sendall(drawn.data)
            for late in waiting:  # output printed during exit
                self._show(ray.get(late).lines)
        except (RayError, RuntimeError):  # the actor or the connection to the cluster is gone
            pass
        finally:
            self._over.set()
            with suppress(OSError):
                self._theirs.shutdown(socket.SHUT_WR)

    def _up(self) -> None:
        """Forward data of the run to the process, until the run closes the connection."""
        waiting: deque[Any] = deque()
        data = b"begun"
        try:
            while data:
                try:
                    data = self._theirs.recv(PIECE)
                except OSError:
                    data = b""
                waiting.append(self._call("in", "feed", data))
                if len(waiting) > WAITING:
                    ray.get(waiting.popleft())
        except (RayError, RuntimeError):
            with suppress(OSError):
                self._theirs.shutdown(socket.SHUT_RD)

    def _show(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            self.said.append(line)
            if not self.quiet:
                show(self.name, line)


def _pieces(folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            piece = b"begun"
            while piece:
                piece = opened.read(LARGEST_PIECE)
                yield file.relative_to(folder).as_posix(), piece


def _in_words(error: Exception) -> str:
    return one_line(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
