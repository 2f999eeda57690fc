"""Signals that end a run are heeded while its process waits for other ranks.

It waits where no handler of Python's comes to run. So somebody else is told of signals too, who lets go of the ranks:
then there is nothing to wait for, and what the handler raises is raised.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE_SECONDS = 1.0  # for a handler of Python's to have come to run


class Heeding:
    """Hears of signals from here on, where this is the main thread. Close it.

    Args:
        let_go: of other ranks; called on a thread of its own, once a second Ctrl-C or a SIGTERM was not heeded.
    """

    def __init__(self, let_go: Callable[[], None]) -> None:
        self._let_go, self._waits = let_go, False
        self._hears = threading.current_thread() is threading.main_thread()
        if self._hears:
            self._here, self._told = socket.socketpair()
            self._told.setblocking(False)
            self._before = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._hear, name="marft-signals", daemon=True).start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Others are waited for."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _hear(self) -> None:
        interrupts = 0
        while numbers := self._here.recv(64):
            interrupts += numbers.count(signal.SIGINT)
            if interrupts > 1 or signal.SIGTERM in numbers:
                time.sleep(GRACE_SECONDS)
                if self._waits:
                    self._let_go()
        self._here.close()

    def close(self) -> None:
        """Hear of no more. Once is enough."""
        if self._hears:
            self._hears = False
            signal.set_wakeup_fd(self._before)
            self._told.close()
