"""Shadow beside a server: a separate process that is suspended during requests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pydantic import TypeAdapter

from marft.common.log import get_logger
from marft.common.processes.child_process import ChildProcess, python_command
from marft.common.texts import single_line
from marft_lab.shadow.settings import ShadowSettings
from marft_lab.shadow.setup import ShadowRequest

logger = get_logger(__name__)
# delay before a restart; maximum restarts in a row without a finished session, or more with a larger shadow.max_retries
RESTART_SECONDS, MAX_RESTARTS = 5.0, 3
PROCESS_MODULE = "marft_lab.shadow.process"
CLEAN_EXIT, REFUSED_EXIT = "ended itself (exit status 0)", "ended itself (exit status 2)"


class ShadowSupervisor:
    """Supervisor of the shadow process; restarts the process after an abnormal exit.

    The process reads sessions from the files recorded by the server. So the server never waits for the shadow. SIGSTOP
    suspends the process when a request arrives, even during a computation. SIGCONT resumes the process after a period
    without requests.

    Args:
        request: shadow request.
        settings: settings of the shadow.
    """

    def __init__(self, request: ShadowRequest, settings: ShadowSettings) -> None:
        self.settings = settings
        request = replace(request, overrides=["--threads", str(settings.threads), *request.overrides], follow=True)
        fields = TypeAdapter(ShadowRequest).dump_python(request, mode="json")
        self._request_line = json.dumps({**fields, "priority": settings.priority}) + "\n"
        self._requests, self._pidfd = 0, -1
        self._child: ChildProcess | None = None
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._supervise, name="marft-shadow", daemon=True)
        self._thread.start()

    def set_active_requests(self, requests: int) -> None:
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
            self._timer = asyncio.get_running_loop().call_later(self.settings.resume_after_idle_seconds, self._resume)

    def close(self) -> None:
        """Terminate the process; its results are on disk."""
        self._closed.set()
        with self._lock:
            child = self._child
        if child is not None:
            self._signal(signal.SIGCONT)
            child.end()
        self._thread.join()

    def _resume(self) -> None:
        if not self._requests:
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """Send a signal through the process's pidfd, which is safe against reuse of process IDs."""
        with self._lock, suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)

    def _supervise(self) -> None:
        max_restarts = max(MAX_RESTARTS, self.settings.max_retries + 2)
        restarts_left = max_restarts
        while restarts_left and not self._closed.is_set():
            sessions, outcome = self._run_once()
            if self._closed.is_set() or outcome in (CLEAN_EXIT, REFUSED_EXIT):
                return
            restarts_left = max_restarts if sessions else restarts_left - 1
            logger.warning(
                "the shadow %s; %s", single_line(outcome), "it starts again" if restarts_left else "it is given up"
            )
            self._closed.wait(RESTART_SECONDS)

    def _run_once(self) -> tuple[int, str]:
        """Run the process to its exit; return the number of finished sessions and the outcome."""
        child = ChildProcess("shadow", partial(python_command, PROCESS_MODULE))
        with self._lock:
            self._child = child
        if self._closed.is_set():  # closed in the meantime
            child.end()
        sessions = 0
        with suppress(OSError, ValueError):
            child.socket.sendall(self._request_line.encode())
            self._attach_process(int(child.socket.recv(32)))
            while data := child.socket.recv(4096):
                sessions += len(data)
        outcome = child.wait_or_terminate()
        with self._lock:
            if self._pidfd >= 0:
                os.close(self._pidfd)
            self._pidfd, self._child = -1, None
        child.socket.close()
        return sessions, outcome

    def _attach_process(self, pid: int) -> None:
        with self._lock, suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)
        if self._requests and self.settings.pause:
            self._signal(signal.SIGSTOP)
            if not self._requests:  # the last request has just been answered
                self._signal(signal.SIGCONT)
