"""Restarts of child processes after a crash: their limits, and the starts of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from marft.common.processes.child_process import KILLED, Command
from marft.common.processes.launcher import Launcher, ProcessHandle

MAX_STARTS = 8  # starts in a row; a process may be killed for lack of memory, also during its start
MAX_LOG_LINES = 12  # last lines of output in the error message


class RestartPolicy:
    """Limits on starts in a row; call :meth:`reset` after a success.

    >>> policy = RestartPolicy(max_starts=3, max_crashes=2)
    >>> for reason in (KILLED, "ended itself", "ended itself"):
    ...     policy.record_exit(reason)
    ...     print(policy.may_start)
    True
    True
    False

    Args:
        max_starts: maximum number of starts in a row.
        max_crashes: maximum number of starts in a row that did not end with SIGKILL; None: the same number.
    """

    def __init__(self, max_starts: int = MAX_STARTS, max_crashes: int | None = None) -> None:
        self.max_starts, self.max_crashes = max_starts, max_crashes or max_starts
        self.exits: list[str] = []  # reasons for exits since the last success
        self.exit_count = 0  # number of all exits
        self._output = ""

    @property
    def may_start(self) -> bool:
        """True if the limits permit another start."""
        crashes = sum(reason != KILLED for reason in self.exits)
        return len(self.exits) < self.max_starts and crashes < self.max_crashes

    @property
    def last_exit(self) -> str:
        """Reason for the last exit, with the last lines of output."""
        return f"{self.exits[-1]}{self._output}"

    def record_exit(self, reason: str, output: Sequence[str] = ()) -> None:
        """Record an exit.

        Args:
            reason: description of the exit.
            output: lines of output for the error message.
        """
        self.exits.append(reason)
        self.exit_count += 1
        lines = "\n".join(list(output)[-MAX_LOG_LINES:])
        self._output = f"{'; the last that it said:' if lines else ''}\n{lines}".rstrip()

    def reset(self) -> None:
        """Forget the exits after a success."""
        self.exits.clear()


class Supervisor(RestartPolicy):
    """Starts of a child process, one at a time, with their limits. Close it at the end.

    It does not restart by itself. Its owner records each exit with :meth:`record_exit`, and calls :meth:`start` again
    while :attr:`may_start` is true.

    Args:
        launcher: starts the process.
        name: label of the process.
        command: command of the process.
        slot: index of the slot for the process.
        quiet: keep the output without showing it.
        max_crashes: see :class:`RestartPolicy`.
    """

    def __init__(
        self,
        launcher: Launcher,
        name: str,
        command: Command,
        *,
        slot: int = 0,
        quiet: bool = False,
        max_crashes: int | None = None,
    ) -> None:
        super().__init__(max_crashes=max_crashes)
        self.launcher, self.name, self.command, self.slot, self.quiet = launcher, name, command, slot, quiet
        self._starting: ProcessHandle | None = None  # started, and not yet returned
        self._is_closed = False

    async def start(self) -> ProcessHandle:
        """Start the process; raises the errors of the launcher."""
        child = await asyncio.to_thread(self._start)
        self._starting = None
        return child

    def _start(self) -> ProcessHandle:
        self._starting = child = self.launcher.start(self.name, self.command, quiet=self.quiet, slot=self.slot)
        if self._is_closed:
            child.end()
        return child

    def close(self) -> None:
        """End a process whose start is in progress. The caller ends a started process."""
        self._is_closed = True
        if self._starting is not None:
            self._starting.end()
