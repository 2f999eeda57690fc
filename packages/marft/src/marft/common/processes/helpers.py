"""Processes that answer requests: one that hangs, crashes or eats memory loses only its own request.

A request and its answer are a line of JSON each. The program of a helper calls :func:`serve`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

START_SECONDS = 60.0  # for a new process to import what it needs
END_SECONDS = 5.0  # for a process that has closed its output to end
MOST_WORDS = 500  # characters of an error


class HelperError(Exception):
    """A request has no answer."""


class NotStartedError(HelperError):
    """A process did not start."""


class TooSlowError(HelperError):
    """A request took longer than it may."""


class FailedError(HelperError):
    """A request raised an error: ``ValueError: why``."""


class DiedError(HelperError):
    """The process ended before it answered, with this exit status.

    Args:
        status: of the process; the number of a signal is negative.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"ended the process (exit status {status})")
        self.status = status


class Helpers:
    """A pool of processes, started as they are needed and replaced when they fail. Safe to use from many threads.

    Args:
        module: the program of a process.
        processes: how many requests are answered at once; None: one for each core.
    """

    def __init__(self, module: str, processes: int | None = None) -> None:
        self._module = module
        self._free: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(processes or os.cpu_count() or 1):
            self._free.put(None)

    def ask(self, request: object, seconds: float) -> Any:
        """Return the answer to a request; blocks until a process is free.

        Args:
            seconds: on the clock, for the request alone.

        Raises:
            HelperError: there is none; the process that was asked is killed.
        """
        process = self._free.get()
        try:
            if process is not None and process.ended:
                process.kill()
                process = None
            process = process or _Process(self._module)
            return process.ask(request, seconds)
        except BaseException:
            if process is not None:
                process.kill()
            process = None
            raise
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End the processes that are not at work."""
        for _ in range(self._free.qsize()):
            process = self._free.get()
            if process is not None:
                process.kill()
            self._free.put(None)


class _Process:
    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, bufsize=1, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout
        try:
            self._read(START_SECONDS)
        except HelperError as error:
            self.kill()
            raise NotStartedError(f"{module} did not start: it {error}") from error

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, request: object, seconds: float) -> Any:
        try:
            self._in.write(json.dumps(request) + "\n")
            self._in.flush()
        except OSError:
            raise DiedError(self._status()) from None
        reply = json.loads(self._read(seconds))
        if "error" in reply:
            raise FailedError(reply["error"])
        return reply["answer"]

    def _read(self, seconds: float) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise TooSlowError(f"took over {seconds:g} s")
        line = self._out.readline()
        if not line:
            raise DiedError(self._status())
        return line

    def _status(self) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(END_SECONDS)
        self._process.kill()
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):  # flushing into a dead process
                pipe.close()


def limit_memory(size: int) -> None:
    """Let this process have so many bytes of address space."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def serve(answer: Callable[[Any], object]) -> None:
    """Answer the requests on stdin, one a line, on stdout; ends when stdin does, and with the parent."""
    _die_with_parent()
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"answer": answer(request)}
        except Exception as error:  # noqa: BLE001  whatever a library raises on what a model wrote
            reply = {"error": f"{type(error).__name__}: {error}"[:MOST_WORDS]}
        print(json.dumps(reply), flush=True)  # noqa: T201


def _die_with_parent() -> None:
    """End when the run does, however it ended, even in the middle of an answer."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
