"""A relayed process as the run sees it: what it says and is told goes through calls of an actor."""

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

PIECE = 2**18  # bytes of a call
LARGEST_PIECE = 8 * 2**20  # bytes of a call that carries a file
WAITING = 4  # calls of one kind that are under way
DRAWS = 2


class RelayedChild:
    """A :class:`~marft.common.processes.child.Child` on another machine, whose connection and lines come out here.

    Args:
        actor: a :class:`~marft_lab.cluster.relay.Relay` that has begun.
        node: that it is on, for messages.
        quiet: keep what it prints, without showing it.
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
        """End it and all that it has started, in a second; should its machine not answer, let go of it."""
        self._call("end", "end")
        threading.Thread(target=self._let_go, name="marft-relay", daemon=True).start()

    def _let_go(self) -> None:
        if not self._over.wait(2 * END_SECONDS):
            self._kill()

    def close(self) -> None:
        """End it, and wait until it has."""
        self.end()
        self.outcome()
        self.socket.close()

    def outcome(self) -> str:
        """How it ended, once it has; its actor ends then."""
        with self._asking:
            if not self._how:
                self._how = self._ask()
                self._over.wait(END_SECONDS)  # until the run has all that it said
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
        with suppress(RayError, RuntimeError, ValueError):  # it is gone, or the cluster is
            ray.kill(self._actor)

    def carried(self, folder: Path) -> str:
        """Carry a folder there, file by file, in bounded pieces → where it is.

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
        """Take away there what was carried."""
        with suppress(RayError):
            self._actor.drop.remote(folder.name)

    # what is passed on

    def _call(self, group: str, method: str, *arguments: object) -> Any:
        return getattr(self._actor, method).options(concurrency_group=group).remote(*arguments)

    def _down(self) -> None:
        """From the process to the run: its words and its lines, until it has none or is lost."""
        waiting = deque(self._call("out", "draw") for _ in range(DRAWS))
        drawn = Drawn()
        try:
            while not drawn.over:
                drawn = ray.get(waiting.popleft())
                waiting.append(self._call("out", "draw"))
                self._show(drawn.lines)
                with suppress(OSError):  # the run has let go of it; its lines are still shown
                    self._theirs.sendall(drawn.data)
            for late in waiting:  # what it printed as it ended
                self._show(ray.get(late).lines)
        except (RayError, RuntimeError):  # the actor is gone, or the connection to the cluster
            pass
        finally:
            self._over.set()
            with suppress(OSError):
                self._theirs.shutdown(socket.SHUT_WR)

    def _up(self) -> None:
        """From the run to the process, until the run has let go of it."""
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
