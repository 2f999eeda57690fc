"""Pool of helper processes that answer requests; a hang, crash or memory overrun loses only one request.

A request and its answer are one line of JSON each. The program of a helper process calls :func:`serve`.
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

START_SECONDS = 60.0  # timeout in seconds for a new process to import its modules
END_SECONDS = 5.0  # timeout in seconds for a process to end after it has closed its output
MAX_ERROR_LENGTH = 500  # maximum length of an error, in characters


class HelperRequestError(Exception):
    """Request without an answer."""


class NotStartedError(HelperRequestError):
    """Helper process that did not start."""


class RequestTimeoutError(HelperRequestError):
    """Request that exceeded its time limit."""


class RequestFailedError(HelperRequestError):
    """Request that raised an error: ``ValueError: why``."""


class ProcessExitedError(HelperRequestError):
    """Helper process that ended before its answer.

    Args:
        status: exit status of the process; a signal number is negative.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"ended the process (exit status {status})")
        self.status = status


class ProcessPool:
    """Pool of helper processes, started on demand and replaced after a failure. Thread-safe.

    Args:
        module: program of a helper process.
        processes: maximum number of parallel requests; None: number of cores.
    """

    def __init__(self, module: str, processes: int | None = None) -> None:
        self._module = module
        self._free: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(processes or os.cpu_count() or 1):
            self._free.put(None)

    def request(self, payload: object, seconds: float) -> Any:
        """Return the answer to a request; blocks until a process is free.

        Args:
            payload: JSON-serializable request.
            seconds: wall-clock time limit for the request itself.

        Raises:
            HelperRequestError: the request has no answer; its process is killed.
        """
        process = self._free.get()
        try:
            if process is not None and process.has_exited:
                process.kill()
                process = None
            process = process or _Process(self._module)
            return process.request(payload, seconds)
        except BaseException:
            if process is not None:
                process.kill()
            process = None
            raise
        finally:
            self._free.put(process)

    def close(self) -> None:
        """Kill all idle processes."""
        for _ in range(self._free.qsize()):
            process = self._free.get()
            if process is not None:
                process.kill()
            self._free.put(None)


class _Process:
    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout
        try:
            self._read(START_SECONDS)
        except HelperRequestError as error:
            self.kill()
            raise NotStartedError(f"{module} did not start: it {error}") from error

    @property
    def has_exited(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def request(self, payload: object, seconds: float) -> Any:
        """Send a request and return its answer.

        Raises:
            HelperRequestError: the process ended, the request timed out, or the request raised an error.
        """
        try:
            self._in.write(json.dumps(payload) + "\n")
            self._in.flush()
        except OSError:
            raise ProcessExitedError(self._wait_for_exit()) from None
        reply = json.loads(self._read(seconds))
        if "error" in reply:
            raise RequestFailedError(reply["error"])
        return reply["answer"]

    def _read(self, seconds: float) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise RequestTimeoutError(f"took over {seconds:g} s")
        line = self._out.readline()
        if not line:
            raise ProcessExitedError(self._wait_for_exit())
        return line

    def _wait_for_exit(self) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(END_SECONDS)
        self._process.kill()
        return self._process.wait()

    def kill(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):  # flushing into a dead process
                pipe.close()


def limit_memory(size: int) -> None:
    """Limit the address space for this process to ``size`` bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def serve(answer: Callable[[Any], object]) -> None:
    """Answer requests from stdin on stdout, one JSON line each, until stdin closes or the parent process ends."""
    _exit_with_parent()
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"answer": answer(request)}
        except Exception as error:  # noqa: BLE001  a library may raise anything on a model's text
            reply = {"error": f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]}
        print(json.dumps(reply), flush=True)  # noqa: T201


def _exit_with_parent() -> None:
    """Exit when the parent process ends, even in the middle of an answer."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
