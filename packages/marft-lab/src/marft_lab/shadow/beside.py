"""Shadow beside a server: a separate process that is suspended during requests."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from contextlib import suppress
from functools import partial

from marft.common.processes.child import Child
from marft.common.processes.python_here import python_here
from marft.common.texts import one_line
from marft_lab.shadow.opening import Asked
from marft_lab.shadow.settings import ShadowSettings

# delay before a restart; maximum restarts in a row without a finished session, or more if shadow.tries is larger
AGAIN_SECONDS, MOST_AGAIN = (
    5.0,
    3,
)
PROGRAM = "marft_lab.shadow.apart"
ENDED_WELL, REFUSED = "ended itself (exit status 0)", "ended itself (exit status 2)"


class ShadowBeside:
    """Supervisor of the shadow process; restarts the process after an abnormal exit.

    The process reads sessions from the files recorded by the server. So the server never waits for the shadow. SIGSTOP
    suspends the process when a request arrives, even during a computation. SIGCONT resumes the process after a period
    without requests.

    Args:
        asked: shadow request.
        settings: settings of the shadow.
    """

    def __init__(self, asked: Asked, settings: ShadowSettings) -> None:
        self.settings = settings
        self._told = json.dumps(_told(asked, settings)) + "\n"
        self._requests, self._pidfd = 0, -1
        self._child: Child | None = None
        self._lock, self._over = threading.Lock(), threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._keep, name="marft-shadow", daemon=True)
        self._thread.start()

    def busy(self, requests: int) -> None:
        """Suspend the shadow during requests.

        Call this method on the server's event loop.

        Args:
            requests: number of requests in progress.
        """
        before, self._requests = self._requests, requests
        if not self.settings.pause:
            return
        if requests and not before:
            if self._timer is not None:
                self._timer.cancel()
            self._signal(signal.SIGSTOP)
        elif before and not requests:
            self._timer = asyncio.get_running_loop().call_later(self.settings.idle_seconds, self._go_on)

    def close(self) -> None:
        """Terminate the process; its results are on disk."""
        self._over.set()
        with self._lock:
            child = self._child
        if child is not None:
            self._signal(signal.SIGCONT)
            child.end()
        self._thread.join()

    def _go_on(self) -> None:
        if not self._requests:
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """Send a signal through the process's pidfd, which is safe against reuse of process IDs."""
        with self._lock, suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)

    def _keep(self) -> None:
        most, log = max(MOST_AGAIN, self.settings.tries + 1), logging.getLogger("marft")
        left = most
        while left and not self._over.is_set():
            sessions, outcome = self._once()
            if self._over.is_set() or outcome in (ENDED_WELL, REFUSED):
                return
            left = most if sessions else left - 1
            log.warning("the shadow %s; %s", one_line(outcome), "it starts again" if left else "it is given up")
            self._over.wait(AGAIN_SECONDS)

    def _once(self) -> tuple[int, str]:
        """Run the process to its exit; return the number of finished sessions and the outcome."""
        child = Child("shadow", partial(python_here, PROGRAM))
        with self._lock:
            self._child = child
        if self._over.is_set():  # closed in the meantime
            child.end()
        sessions = 0
        with suppress(OSError, ValueError):
            child.socket.sendall(self._told.encode())
            self._found(int(child.socket.recv(32)))
            while said := child.socket.recv(4096):
                sessions += len(said)
        outcome = child.outcome()
        with self._lock:
            if self._pidfd >= 0:
                os.close(self._pidfd)
            self._pidfd, self._child = -1, None
        child.socket.close()
        return sessions, outcome

    def _found(self, pid: int) -> None:
        with self._lock, suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)
        if self._requests and self.settings.pause:
            self._signal(signal.SIGSTOP)
            if not self._requests:  # the last request has just been answered
                self._signal(signal.SIGCONT)


def _told(asked: Asked, settings: ShadowSettings) -> dict[str, object]:
    return {
        "team": str(asked.team), "sessions": str(asked.sessions), "output": str(asked.output),
        "grade": str(asked.grade or ""), "feedback": str(asked.feedback or ""), "checkpoint": asked.checkpoint,
        "overrides": ["--threads", str(settings.threads), *asked.overrides], "trust_code": asked.trust_code,
        "priority": settings.priority,
    }  # fmt: skip
