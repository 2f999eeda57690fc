"""Signal handling while a process waits for other ranks.

A process in a collective operation does not run Python signal handlers. A separate thread therefore receives the
signals too, and ends the other ranks. The wait then stops, and the handler's exception is raised.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE_SECONDS = 1.0  # time for the Python handler to run


class Heeding:
    """Watcher of signals, active from construction in the main thread; call ``close`` at the end.

    Args:
        let_go: function that ends other ranks. It is called on a separate thread, after a second Ctrl-C or a SIGTERM
            during :meth:`waiting`.
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
        """Mark a wait for other ranks."""
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
        """Stop watching; repeated calls have no effect."""
        if self._hears:
            self._hears = False
            signal.set_wakeup_fd(self._before)
            self._told.close()
