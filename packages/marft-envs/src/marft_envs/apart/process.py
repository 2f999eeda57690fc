"""Parent side of an environment process: requests from many threads, each with a timeout."""

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
# The folder becomes a package under a fixed name, so packages on the other Python cannot shadow it. Modules are not
# looked up in the working folder.
START = """import sys; sys.path[:] = filter(None, sys.path)
import asyncio, importlib.util as util
init, package, descriptor = sys.argv[1:]
spec = util.spec_from_file_location("marft_inside", init)
sys.modules["marft_inside"] = util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["marft_inside"])
from marft_inside.bridge import serve
asyncio.run(serve(package, int(descriptor)))"""
START_SECONDS = 120.0  # minimum timeout, in seconds, for importing the package and loading an environment
SHOWN_LINES = 5  # number of last printed lines in an error message


class EnvironmentApartError(RuntimeError):
    """Error for an environment process without a valid reply; no reward follows from it."""


class Apart:
    """Handle to a process on another Python.

    The process is started on demand, and restarted after a loss. A restart loses the state of the process. The
    process ends with its parent.

    Args:
        package: name of the package. ``of_<package>.py`` in the folder ``inside`` serves it.
        python: path to the Python executable that has the package.
        given: arguments for opening the environment.
        patience: timeout of a request, in seconds.
    """

    def __init__(self, package: str, python: str, given: Mapping[str, Any], patience: float) -> None:
        self.package, self.python, self.given, self.patience = package, python, dict(given), patience
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def current(self) -> _Running:
        """Return the running process; start one if necessary.

        Raises:
            EnvironmentApartError: the process did not start, or the environment did not load.
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
    """One running process."""

    def __init__(self, package: str, python: str, patience: float) -> None:
        self.package = package
        self.lost = ""  # reason why the process accepts no more requests; "" while it accepts them
        self._child = Child(package, lambda end: self._command(python, end), quiet=True)
        # send timeout, for a process that no longer reads
        most = struct.pack("ll", int(patience), int(patience % 1 * 1e6) or 1)
        self._child.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, most)
        self._sending = threading.Lock()  # long lines from several threads would interleave otherwise
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._last = 0
        threading.Thread(target=self._read, name=f"marft-{package}", daemon=True).start()

    def _command(self, python: str, descriptor: int) -> Sequence[str]:
        arguments = (str(INSIDE / "__init__.py"), f"of_{self.package}", str(descriptor))
        return [python, "-u", "-X", "faulthandler", "-c", START, *arguments]

    def ask(self, question: Mapping[str, Any], patience: float) -> dict[str, Any]:
        """Send a request and wait for the reply.

        Raises:
            EnvironmentApartError: the request failed, the process ended, or the timeout passed. A timeout ends the
                process.
        """
        future = self._post(question, patience)
        try:
            return self._told(future.result(patience))
        except TimeoutError as error:
            raise self._late(patience) from error

    async def asked(self, question: Mapping[str, Any], patience: float) -> dict[str, Any]:
        """Asynchronous version of ``ask``, with the same errors."""
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
        """Send a request without waiting for a reply."""
        if not self.lost:
            try:
                self._send({"id": 0, **question})
            except OSError:  # the process ended, along with the state to drop; or it has received half a line
                self.close(f"the process of {self.package} reads nothing any more")

    def _send(self, question: Mapping[str, Any]) -> None:
        """Write a request to the socket.

        Raises:
            BlockingIOError: the process does not read.
            OSError: the process has ended.
        """
        line = json.dumps(question).encode() + b"\n"
        with self._sending:
            self._child.socket.sendall(line)

    def close(self, why: str) -> None:
        """End the process; pending requests fail with the given reason."""
        with self._lock:
            if self.lost:
                return
            self.lost = why + self._last_words()
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():  # False if the request was cancelled
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
            except OSError:  # the process ended before it read everything; its outcome is reported below
                pass
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                self.close(f"the process of {self.package} said what is no answer ({type(error).__name__})")
        if not self.lost:
            outcome = self._child.outcome()
            self.close(f"the process of {self.package} {outcome}")
        self._child.close()


def number_in(table: Mapping[str, Any], key: str) -> float:
    """Return a finite number from a reply.

    Raises:
        EnvironmentApartError: the value is missing or not a finite number.
    """
    value = table.get(key)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise EnvironmentApartError(f"the environment gave the {key} {value!r:.100}, which is no finite number")
