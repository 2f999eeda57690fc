"""A worker process from outside: how it is started and ended, and what it prints."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress

from marft.texts import visible
from marft.tools.connection import SUBREAPER

START = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from marft.workers.worker import main
main(int(sys.argv[2]))
"""
END_SECONDS = 5.0  # for a process that is asked to end
LONGEST_LINE = 2000  # bytes; what is longer comes in pieces


class Child:
    """A process of Python that ends with this one, and with all that it has started, however that ends.

    It has a session of its own, so that a Ctrl-C in the terminal is this process's alone. What it prints comes out here
    on stderr, line by line, as something that no terminal obeys.

    Args:
        name: for what it prints.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.socket, theirs = socket.socketpair()
        begun: Future[subprocess.Popen[bytes]] = Future()
        self._keeper = threading.Thread(target=self._keep, args=(theirs, begun), name="marft-worker", daemon=True)
        self._keeper.start()
        self._process = begun.result()

    def _keep(self, theirs: socket.socket, begun: Future[subprocess.Popen[bytes]]) -> None:
        """Start the process, on a thread that is there as long as it is: a process that ends with its parent ends, on
        Linux, with the thread that has started it."""
        try:
            with theirs:
                process = _start(theirs.fileno())
        except Exception as error:  # noqa: BLE001  whoever waits must hear of it
            begun.set_exception(error)
            return
        begun.set_result(process)
        assert process.stdout is not None
        while line := process.stdout.readline(LONGEST_LINE):
            said = visible(line.decode("utf-8", "replace").rstrip("\r\n"))
            with suppress(OSError, ValueError, AttributeError):  # nobody reads it, or there is no stderr
                sys.stderr.write(f"{self.name}: {said}\n")

    def end(self) -> None:
        """End it and all that it has started, in a second, whatever it is at."""
        self._process.terminate()

    def close(self) -> None:
        """End it, and wait until it has."""
        self.end()
        self.outcome()
        self.socket.close()

    def outcome(self) -> str:
        """How it ended, once it has; one that has let go of its connection and does not end is ended."""
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.end()
            status = self._process.wait()
        self._keeper.join(END_SECONDS)
        number = -status if status < 0 else status - 128  # as a shell has it
        if number > 0:
            with suppress(ValueError):
                return f"was killed ({signal.Signals(number).name})"
        return f"ended itself (exit status {status})"


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()),
         sys.executable, "-u", "-X", "faulthandler", "-c", START, path, str(descriptor)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[descriptor],
        start_new_session=True,
    )  # fmt: skip
