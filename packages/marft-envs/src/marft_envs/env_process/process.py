"""Parent side of environments in a process on a separate Python: settings, requests, sessions and text forms.

Requests come from many threads, each with a timeout.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.common.processes.child_process import ChildProcess
from marft.config.interfaces.environment import Environment
from marft.config.settings import NonEmptyString, Positive

WORKER_FOLDER = Path(__file__).with_name("worker")
# The folder becomes a package under a fixed name, so packages on the other Python cannot shadow it. Modules are not
# looked up in the working folder.
START_CODE = """import sys; sys.path[:] = filter(None, sys.path)
import asyncio, importlib.util as util
init, package, descriptor = sys.argv[1:]
spec = util.spec_from_file_location("marft_env_worker", init)
sys.modules["marft_env_worker"] = util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["marft_env_worker"])
from marft_env_worker.server import serve
asyncio.run(serve(package, int(descriptor)))"""
START_SECONDS = 120.0  # minimum timeout, in seconds, for importing the package and loading an environment
EPISODE_COUNTER = count()  # episode counter of this process
OUTPUT_LINES = 5  # number of last printed lines in an error message


class EnvProcessError(RuntimeError):
    """Error for an environment process without a valid reply; no reward follows from it."""


class EnvProcess:
    """Handle to a process on another Python.

    The process is started on demand, and restarted after a loss. A restart loses the state of the process. The
    process ends with its parent.

    Args:
        package: name of the package. ``source_<package>.py`` in the folder ``worker`` serves it.
        python: path to the Python executable that has the package.
        arguments: arguments for opening the environment.
        timeout: timeout of a request, in seconds.
    """

    def __init__(self, package: str, python: str, arguments: Mapping[str, object], timeout: float) -> None:
        self.package, self.python, self.arguments, self.timeout = package, python, dict(arguments), timeout
        self._lock = threading.Lock()
        self._running: _RunningProcess | None = None

    def get_running(self) -> _RunningProcess:
        """Return the running process; start one if necessary.

        Raises:
            EnvProcessError: the process did not start, or the environment did not load.
        """
        with self._lock:
            if self._running is None or self._running.end_reason:
                self.close()
                running = _RunningProcess(self.package, self.python, self.timeout)
                try:
                    running.request({"do": "open", "with": self.arguments}, max(self.timeout, START_SECONDS))
                except EnvProcessError:
                    running.close("it could not be opened")
                    raise
                self._running = running
            return self._running

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.close("it was closed")


class _RunningProcess:
    """One running process."""

    def __init__(self, package: str, python: str, timeout: float) -> None:
        self.package = package
        self.end_reason = ""  # reason why the process accepts no more requests; "" while it accepts them
        self._child = ChildProcess(package, lambda end: self._command(python, end), quiet=True)
        # send timeout, for a process that no longer reads
        send_timeout = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6) or 1)
        self._child.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, send_timeout)
        self._send_lock = threading.Lock()  # long lines from several threads would interleave otherwise
        self._pending: dict[int, Future[dict[str, object]]] = {}
        self._lock = threading.Lock()
        self._last_id = 0
        threading.Thread(target=self._read_replies, name=f"marft-{package}", daemon=True).start()

    def _command(self, python: str, descriptor: int) -> Sequence[str]:
        arguments = (str(WORKER_FOLDER / "__init__.py"), f"source_{self.package}", str(descriptor))
        return [python, "-u", "-X", "faulthandler", "-c", START_CODE, *arguments]

    def request(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and wait for the reply.

        Raises:
            EnvProcessError: the request failed, the process ended, or the timeout passed. A timeout ends the
                process.
        """
        future = self._send_request(message, timeout)
        try:
            return self._check_answer(future.result(timeout))
        except TimeoutError as error:
            raise self._close_late(timeout) from error

    async def request_async(self, message: Mapping[str, object], timeout: float) -> dict[str, object]:
        """Asynchronous version of ``request``, with the same errors."""
        future = self._send_request(message, timeout)
        try:
            return self._check_answer(await asyncio.wait_for(asyncio.wrap_future(future), timeout))
        except TimeoutError as error:
            raise self._close_late(timeout) from error

    def _send_request(self, message: Mapping[str, object], timeout: float) -> Future[dict[str, object]]:
        future: Future[dict[str, object]] = Future()
        with self._lock:
            if self.end_reason:
                raise EnvProcessError(self.end_reason)
            self._last_id += 1
            number = self._last_id
            self._pending[number] = future
        try:
            self._write({"id": number, **message})
        except BlockingIOError as error:
            raise self._close_late(timeout) from error
        except OSError as error:
            self.close(f"the process of {self.package} is gone")
            raise EnvProcessError(self.end_reason) from error
        return future

    def _check_answer(self, answer: dict[str, object]) -> dict[str, object]:
        if "error" in answer:
            raise EnvProcessError(f"{self.package}: {answer['error']}")
        return answer

    def _close_late(self, timeout: float) -> EnvProcessError:
        self.close(f"the process of {self.package} has not answered in {timeout:g} seconds, and was ended")
        return EnvProcessError(self.end_reason)

    def send_only(self, message: Mapping[str, object]) -> None:
        """Send a request without waiting for a reply."""
        if not self.end_reason:
            try:
                self._write({"id": 0, **message})
            except OSError:  # the process ended, along with the state to drop; or it has received half a line
                self.close(f"the process of {self.package} reads nothing any more")

    def _write(self, message: Mapping[str, object]) -> None:
        """Write a request to the socket.

        Raises:
            BlockingIOError: the process does not read.
            OSError: the process has ended.
        """
        line = json.dumps(message).encode() + b"\n"
        with self._send_lock:
            self._child.socket.sendall(line)

    def close(self, reason: str) -> None:
        """End the process; pending requests fail with the given reason."""
        with self._lock:
            if self.end_reason:
                return
            self.end_reason = reason + self._last_output()
            waiting, self._pending = self._pending, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():  # False if the request was cancelled
                future.set_exception(EnvProcessError(self.end_reason))
        self._child.end()

    def _last_output(self) -> str:
        lines = [line for line in self._child.output_tail if line.strip()][-OUTPUT_LINES:]
        return "; it said last: " + " / ".join(lines) if lines else ""

    def _read_replies(self) -> None:
        with self._child.socket.makefile("rb") as lines:
            try:
                for line in lines:
                    answer = json.loads(line)
                    with self._lock:
                        future = self._pending.pop(int(answer["id"]), None)
                    if future and future.set_running_or_notify_cancel():
                        future.set_result(answer)
            except OSError:  # the process ended before it read everything; its outcome is reported below
                pass
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                self.close(f"the process of {self.package} said what is no answer ({type(error).__name__})")
        if not self.end_reason:
            outcome = self._child.wait_or_terminate()
            self.close(f"the process of {self.package} {outcome}")
        self._child.close()


class ProcessSession:
    """Base class for the team's side of an episode in an environment process.

    Args:
        process: the environment process.
        timeout: timeout of a request, in seconds.
    """

    def __init__(self, process: EnvProcess, timeout: float) -> None:
        self.process, self.timeout = process, timeout
        self.key = f"{next(EPISODE_COUNTER)}"
        self._running: _RunningProcess | None = None

    async def begin_episode(self, **request: object) -> dict[str, Any]:
        """Start the episode and return the first reply."""
        self._running = self.process.get_running()
        return await self.request("begin", **request)

    async def request(self, action: str, **content: object) -> dict[str, Any]:
        """Send a request about the episode and return the reply."""
        assert self._running, "the episode has begun"
        return await self._running.request_async({"do": action, **content, "episode": self.key}, self.timeout)

    async def close(self) -> None:
        """Drop the episode in the process."""
        if self._running is not None:
            self._running.send_only({"do": "drop", "episode": self.key})

    def read_outcome(self, outcome: object) -> tuple[dict[str, object], float]:
        """Return the outcome of the episode, and its reward.

        Raises:
            EnvProcessError: the outcome is no table, or has no finite reward.
        """
        if not isinstance(outcome, dict):
            raise EnvProcessError(f"{self.process.package} gave {outcome!r:.100}, which is no score")
        return outcome, finite_number(outcome, "reward")


def finite_number(table: Mapping[str, object], key: str) -> float:
    """Return a finite number from a reply.

    Raises:
        EnvProcessError: the value is missing or not a finite number.
    """
    value = table.get(key)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise EnvProcessError(f"the environment gave the {key} {value!r:.100}, which is no finite number")


# shown once, with the first prompt
TOOLS_TEMPLATE = 'Tools, called as <tool_call>{{"name": NAME, "arguments": {{…}}}}</tool_call>:\n{}'
MAX_METRIC = 1e300  # metrics with a larger magnitude, and values that are not numbers, are dropped


def format_tool(tool: Mapping[str, Any]) -> str:
    """Describe a tool in one or two lines: name, description, and any arguments as a JSON schema.

    >>> format_tool({"name": "add", "description": "Adds.", "parameters": {"properties": {"a": {"type": "number"}}}})
    'add: Adds. Arguments: {"properties":{"a":{"type":"number"}}}'
    """
    schema = tool.get("parameters") or {}
    text = f"{tool['name']}: {tool.get('description') or ''}".rstrip()
    if not schema.get("properties"):
        return text
    return f"{text} Arguments: {json.dumps(schema, ensure_ascii=False, separators=(',', ':'))}"


def format_messages(messages: Sequence[Mapping[str, str]]) -> str:
    """Join messages into one text; roles are named if a role besides user, system and tool occurs.

    >>> format_messages([{"role": "user", "content": "2 + 3?"}])
    '2 + 3?'
    """
    if all(message["role"] in ("user", "system", "tool") for message in messages):
        return "\n\n".join(message["content"] for message in messages if message["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def clean_metrics(metrics: object) -> dict[str, float]:
    """Return the numeric metrics of a rubric under valid metric names.

    Names keep word characters only and are cut to 64 characters.
    """
    if not isinstance(metrics, dict):
        return {}
    named = {re.sub(r"\W", "_", str(name))[:64]: value for name, value in metrics.items()}
    numbers = {name: value for name, value in named.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if -MAX_METRIC < value < MAX_METRIC}


class SubprocessEnvironment(Environment):
    """Base class for an environment in a separate Python, because its package needs other library versions."""

    install_command: ClassVar[str]  # command that creates such a Python environment, for error messages

    python: NonEmptyString = Field(description="path to the Python executable of an environment with the package")
    timeout_seconds: Positive = Field(
        default=120.0, description="timeout of a request, in seconds; then the process ends"
    )

    @field_validator("python")
    @classmethod
    def _check_python(cls, python: str) -> str:
        if not os.path.isfile(expand_home(python)):  # noqa: PTH113  returns False for a path that is too long
            words = {"python": python, "installs": cls.install_command}
            raise PydanticCustomError("python", "there is no {python}; make one:  {installs}", words)
        return python


def expand_home(path: str) -> str:
    """Expand a leading ``~`` in a path; paths with unknown users stay unchanged."""
    return os.path.expanduser(path)  # noqa: PTH111
