"""The process that runs environments of ``verifiers``, from outside: asked by many threads, and held to answer."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from marft.processes.child import Child

SERVER = Path(__file__).with_name("server.py")
START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
START_SECONDS = 120.0  # to import everything, and load an environment
SHOWN_LINES = 5  # of what it printed last


class EnvironmentApartError(RuntimeError):
    """The process of an environment has not answered, or not with an answer. No reward follows from that."""


class Apart:
    """A process on another Python. It is started when it is needed, also again after it was lost; what it held then is
    lost with it. It ends with this process.

    Args:
        python: with ``verifiers`` and the environment's package.
        name, args: of the environment.
        patience: seconds that an answer may take.
    """

    def __init__(self, python: str, name: str, args: Mapping[str, Any], patience: float) -> None:
        self.python, self.name, self.args, self.patience = python, name, dict(args), patience
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def current(self) -> _Running:
        """The process, started where there is none.

        Raises:
            EnvironmentApartError: it cannot be started, or the environment not be loaded.
        """
        with self._lock:
            if self._running is None or self._running.lost:
                self.close()
                running = _Running(self.python, self.patience)
                try:
                    running.ask({"do": "open", "name": self.name, "args": self.args}, max(self.patience, START_SECONDS))
                except EnvironmentApartError:
                    running.close("it could not be opened")
                    raise
                self._running = running
            return self._running

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.close("it was closed")


class _Running:
    """One process while it lives."""

    def __init__(self, python: str, patience: float) -> None:
        self.lost = ""  # why nothing can be asked any more
        self._child = Child("verifiers", lambda end: self._command(python, end), quiet=True)
        most = struct.pack("ll", int(patience), int(patience % 1 * 1e6) or 1)  # for a process that reads no more
        self._child.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, most)
        self._sending = threading.Lock()  # else long lines of several threads come through each other
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._last = 0
        threading.Thread(target=self._read, name="marft-verifiers", daemon=True).start()

    @staticmethod
    def _command(python: str, descriptor: int) -> Sequence[str]:
        return [python, "-u", "-X", "faulthandler", "-c", START, str(SERVER), str(descriptor)]

    def ask(self, question: Mapping[str, Any], patience: float) -> dict[str, Any]:
        """Ask something, and wait for its answer.

        Raises:
            EnvironmentApartError: it failed, the process is gone, or does not answer in time: then it is ended.
        """
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self.lost:
                raise EnvironmentApartError(self.lost)
            self._last += 1
            number = self._last
            self._waiting[number] = future
        try:
            self._send({"id": number, **question})
            answer = future.result(patience)
        except (TimeoutError, BlockingIOError) as error:
            self.close(f"the process of verifiers has not answered in {patience:g} seconds, and was ended")
            raise EnvironmentApartError(self.lost) from error
        except OSError as error:
            self.close("the process of verifiers is gone")
            raise EnvironmentApartError(self.lost) from error
        if "error" in answer:
            raise EnvironmentApartError(f"verifiers: {answer['error']}")
        return answer

    def forget(self, question: Mapping[str, Any]) -> None:
        """Ask for something whose answer nobody waits for."""
        if not self.lost:
            try:
                self._send({"id": 0, **question})
            except OSError:  # it is gone, and what was to be forgotten with it; or has half a line
                self.close("the process of verifiers reads nothing any more")

    def _send(self, question: Mapping[str, Any]) -> None:
        """
        Raises:
            OSError: it is gone; of these BlockingIOError: it does not read.
        """
        line = json.dumps(question).encode() + b"\n"
        with self._sending:
            self._child.socket.sendall(line)

    def close(self, why: str) -> None:
        """End it; whoever waits for it is told why."""
        with self._lock:
            if self.lost:
                return
            self.lost = why + self._last_words()
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(EnvironmentApartError(self.lost))
        self._child.end()

    def _last_words(self) -> str:
        lines = [line for line in self._child.said if line.strip()][-SHOWN_LINES:]
        return "; it said last: " + " / ".join(lines) if lines else ""

    def _read(self) -> None:
        with self._child.socket.makefile("rb") as lines:
            try:
                for line in lines:
                    answer = json.loads(line)
                    with self._lock:
                        future = self._waiting.pop(int(answer["id"]), None)
                    if future:
                        future.set_result(answer)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                self.close(f"the process of verifiers said what is no answer ({type(error).__name__})")
        if not self.lost:
            outcome = self._child.outcome()
            self.close(f"the process of verifiers {outcome}")
        self._child.close()


def number_in(table: Mapping[str, Any], key: str) -> float:
    """A finite number in an answer.

    Raises:
        EnvironmentApartError: there is none.
    """
    value = table.get(key)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise EnvironmentApartError(f"verifiers gave the {key} {value!r:.100}, which is no finite number")
