"""The process that has a package and its environments, from outside: asked by many threads, and held to answer."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from marft.common.processes.child import Child

INSIDE = Path(__file__).with_name("inside")
# the folder becomes a package by a name that nobody has, whatever else is found on that Python; no module is looked for
# in the working folder
START = """import sys; sys.path[:] = filter(None, sys.path)
import asyncio, importlib.util as util
init, package, descriptor = sys.argv[1:]
spec = util.spec_from_file_location("marft_inside", init)
sys.modules["marft_inside"] = util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["marft_inside"])
from marft_inside.bridge import serve
asyncio.run(serve(package, int(descriptor)))"""
START_SECONDS = 120.0  # to import everything, and load an environment
SHOWN_LINES = 5  # of what it printed last


class EnvironmentApartError(RuntimeError):
    """The process of an environment has not answered, or not with an answer. No reward follows from that."""


class Apart:
    """A process on another Python. It is started when it is needed, also again after it was lost; what it held then is
    lost with it. It ends with this process.

    Args:
        package: whose environments are there, as it is called; ``of_<package>.py`` in the folder ``inside`` asks it.
        python: that has the package.
        given: what is to be opened.
        patience: seconds that an answer may take.
    """

    def __init__(self, package: str, python: str, given: Mapping[str, Any], patience: float) -> None:
        self.package, self.python, self.given, self.patience = package, python, dict(given), patience
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
                running = _Running(self.package, self.python, self.patience)
                try:
                    running.ask({"do": "open", "with": self.given}, max(self.patience, START_SECONDS))
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

    def __init__(self, package: str, python: str, patience: float) -> None:
        self.package = package
        self.lost = ""  # why nothing can be asked any more
        self._child = Child(package, lambda end: self._command(python, end), quiet=True)
        most = struct.pack("ll", int(patience), int(patience % 1 * 1e6) or 1)  # for a process that reads no more
        self._child.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, most)
        self._sending = threading.Lock()  # else long lines of several threads come through each other
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._last = 0
        threading.Thread(target=self._read, name=f"marft-{package}", daemon=True).start()

    def _command(self, python: str, descriptor: int) -> Sequence[str]:
        arguments = (str(INSIDE / "__init__.py"), f"of_{self.package}", str(descriptor))
        return [python, "-u", "-X", "faulthandler", "-c", START, *arguments]

    def ask(self, question: Mapping[str, Any], patience: float) -> dict[str, Any]:
        """Ask something, and wait for its answer.

        Raises:
            EnvironmentApartError: it failed, the process is gone, or does not answer in time: then it is ended.
        """
        future = self._post(question, patience)
        try:
            return self._told(future.result(patience))
        except TimeoutError as error:
            raise self._late(patience) from error

    async def asked(self, question: Mapping[str, Any], patience: float) -> dict[str, Any]:
        """As ``ask``, while others go on."""
        future = self._post(question, patience)
        try:
            return self._told(await asyncio.wait_for(asyncio.wrap_future(future), patience))
        except TimeoutError as error:
            raise self._late(patience) from error

    def _post(self, question: Mapping[str, Any], patience: float) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self.lost:
                raise EnvironmentApartError(self.lost)
            self._last += 1
            number = self._last
            self._waiting[number] = future
        try:
            self._send({"id": number, **question})
        except BlockingIOError as error:
            raise self._late(patience) from error
        except OSError as error:
            self.close(f"the process of {self.package} is gone")
            raise EnvironmentApartError(self.lost) from error
        return future

    def _told(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise EnvironmentApartError(f"{self.package}: {answer['error']}")
        return answer

    def _late(self, patience: float) -> EnvironmentApartError:
        self.close(f"the process of {self.package} has not answered in {patience:g} seconds, and was ended")
        return EnvironmentApartError(self.lost)

    def forget(self, question: Mapping[str, Any]) -> None:
        """Ask for something whose answer nobody waits for."""
        if not self.lost:
            try:
                self._send({"id": 0, **question})
            except OSError:  # it is gone, and what was to be forgotten with it; or has half a line
                self.close(f"the process of {self.package} reads nothing any more")

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
            if future.set_running_or_notify_cancel():  # else nobody waits any more
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
                    if future and future.set_running_or_notify_cancel():
                        future.set_result(answer)
            except OSError:  # it is gone, and had not read all: how it ended is told below
                pass
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                self.close(f"the process of {self.package} said what is no answer ({type(error).__name__})")
        if not self.lost:
            outcome = self._child.outcome()
            self.close(f"the process of {self.package} {outcome}")
        self._child.close()


def number_in(table: Mapping[str, Any], key: str) -> float:
    """A finite number in an answer.

    Raises:
        EnvironmentApartError: there is none.
    """
    value = table.get(key)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise EnvironmentApartError(f"the environment gave the {key} {value!r:.100}, which is no finite number")
