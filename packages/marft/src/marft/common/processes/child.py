"""A process of ours from outside: how it is started and ended, and what it prints."""

from __future__ import annotations

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
from marft.common.texts import visible

END_SECONDS = 5.0  # for a process that is asked to end
LONGEST_LINE = 2000  # bytes; what is longer comes in pieces
LAST_LINES = 20  # that are remembered
KILLED = "was killed (SIGKILL)"  # the outcome of one that somebody has ended, or that there was no memory for
Command = Callable[[int], Sequence[str]]  # from the number of its end of the connection


class Child:
    """A process that ends with this one, and with all that it has started, however that ends.

    It has a session of its own, so that a Ctrl-C in the terminal is this process's alone. What it prints comes out here
    on stderr, line by line, as something that no terminal obeys.

    Args:
        name: for what it prints.
        command: what is started.
        quiet: keep what it prints, without showing it.
        hear: is told each line that it prints, in the place of stderr.
    """

    def __init__(
        self, name: str, command: Command, *, quiet: bool = False, hear: Callable[[str], object] | None = None
    ) -> None:
        self.name, self.quiet, self._hear = name, quiet, hear
        self.said: deque[str] = deque(maxlen=LAST_LINES)  # last lines of what it printed
        self.socket, theirs = socket.socketpair()
        begun: Future[subprocess.Popen[bytes]] = Future()
        self._keeper = threading.Thread(
            target=self._keep, args=(command, theirs, begun), name="marft-child", daemon=True
        )
        self._keeper.start()
        self._process = begun.result()

    def _keep(self, command: Command, theirs: socket.socket, begun: Future[subprocess.Popen[bytes]]) -> None:
        """Start the process, on a thread that is there as long as it is: a process that ends with its parent ends, on
        Linux, with the thread that has started it."""
        try:
            with theirs:
                process = _start(command, theirs.fileno())
        except Exception as error:  # noqa: BLE001  whoever waits must hear of it
            begun.set_exception(error)
            return
        begun.set_result(process)
        assert process.stdout is not None
        while line := process.stdout.readline(LONGEST_LINE):
            said = visible(line.decode("utf-8", "replace").rstrip("\r\n"))
            self.said.append(said)
            if self._hear:
                self._hear(said)
            elif not self.quiet:
                show(self.name, said)

    def end(self) -> None:
        """End it and all that it has started, in a second, whatever it is at."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)  # one that is stopped hears of nothing

    def close(self) -> None:
        """End it, and wait until it has."""
        self.end()
        self.outcome()
        self.socket.close()

    def carried(self, folder: Path) -> str:
        """Where it finds a folder of this machine."""
        return str(folder)

    def dropped(self, folder: Path) -> None:
        """Nothing was made for it."""

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


def show(name: str, said: str) -> None:
    """Print a line of what a process has said, on stderr."""
    with suppress(OSError, ValueError, AttributeError):  # nobody reads it, or there is no stderr
        sys.stderr.write(f"{name}: {said}\n")


def _start(command: Command, descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()), *command(descriptor)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[descriptor],
        start_new_session=True,
    )  # fmt: skip
