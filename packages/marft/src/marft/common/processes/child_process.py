"""Local child process: start, output and end; the command that starts one of MARFT's own programs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from marft.common.processes import SUBREAPER
from marft.common.texts import sanitize

END_SECONDS = 5.0  # seconds to wait for a process to end before it is terminated
MAX_LINE_BYTES = 2000  # bytes; longer lines are split
OUTPUT_TAIL_LINES = 20  # lines of output that are kept
KILLED = "was killed (SIGKILL)"  # outcome of a process that was killed, by a user or for lack of memory
Command = Callable[[int], Sequence[str]]  # receives the file descriptor of its end of the connection

BOOTSTRAP = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main(int(sys.argv[2]))
"""


class ChildProcess:
    """Child process bound to this process: both end together, with all descendants.

    The child has its own session, so Ctrl-C in the terminal reaches only this process. Its output appears on this
    process's stderr, line by line, without control characters.

    Args:
        name: label of its output.
        command: command to start.
        quiet: keep the output without showing it.
        on_line: called with each line of output; replaces stderr.
    """

    def __init__(
        self, name: str, command: Command, *, quiet: bool = False, on_line: Callable[[str], object] | None = None
    ) -> None:
        self.name, self.quiet, self._on_line = name, quiet, on_line
        self.output_tail: deque[str] = deque(maxlen=OUTPUT_TAIL_LINES)  # last lines of output
        self.socket, child_socket = socket.socketpair()
        started: Future[subprocess.Popen[bytes]] = Future()
        self._reader_thread = threading.Thread(
            target=self._run_and_read, args=(command, child_socket, started), name="marft-child", daemon=True
        )
        self._reader_thread.start()
        self._process = started.result()

    def _run_and_read(
        self, command: Command, child_socket: socket.socket, started: Future[subprocess.Popen[bytes]]
    ) -> None:
        """Start the process on a thread that exists as long as the process.

        On Linux, a process that ends with its parent ends with the thread that started it.
        """
        try:
            with child_socket:
                process = _start_process(command, child_socket.fileno())
        except Exception as error:  # noqa: BLE001  the waiting thread re-raises it
            started.set_exception(error)
            return
        started.set_result(process)
        assert process.stdout is not None
        while line := process.stdout.readline(MAX_LINE_BYTES):
            text = sanitize(line.decode("utf-8", "replace").rstrip("\r\n"))
            self.output_tail.append(text)
            if self._on_line:
                self._on_line(text)
            elif not self.quiet:
                print_line(self.name, text)

    def end(self) -> None:
        """Terminate the process and its descendants within a second."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)  # a stopped process handles SIGTERM only after SIGCONT

    def close(self) -> None:
        """Terminate the process and wait for its end."""
        self.end()
        self.wait_or_terminate()
        self.socket.close()

    def share_folder(self, folder: Path) -> str:
        """Return the process's path for a folder on this machine: the same path."""
        return str(folder)

    def release_folder(self, folder: Path) -> None:
        """No-op: a local process uses the folder directly."""

    def wait_or_terminate(self) -> str:
        """Wait ``END_SECONDS`` for the process's end, then terminate it → how it ended: exit status or signal."""
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.end()
            status = self._process.wait()
        self._reader_thread.join(END_SECONDS)
        number = -status if status < 0 else status - 128  # shells report a signal as 128 plus its number
        if number > 0:
            with suppress(ValueError):
                return f"was killed ({signal.Signals(number).name})"
        return f"ended itself (exit status {status})"


def print_line(name: str, text: str) -> None:
    """Print one line of a process's output on stderr."""
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed or missing
        sys.stderr.write(f"{name}: {text}\n")


def _start_process(command: Command, descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()), *command(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[descriptor],
        start_new_session=True,
    )


def module_path() -> list[str]:
    """Return the module search path without the entry for the working folder."""
    return [entry for entry in sys.path if isinstance(entry, str) and entry]


def python_command(module: str, descriptor: int) -> Sequence[str]:
    """Return a command that runs ``main`` in a module with the current Python and module search path.

    The working folder is not on the path (``-P``), so that no file there replaces a module.

    Args:
        module: module whose ``main`` is called with the descriptor.
        descriptor: file descriptor of the program's end of the connection.
    """
    program, path = BOOTSTRAP.format(module=module), json.dumps(module_path())
    return [sys.executable, "-P", "-u", "-X", "faulthandler", "-c", program, path, str(descriptor)]
