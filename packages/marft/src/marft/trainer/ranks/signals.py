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


class SignalWatcher:
    """Watcher of signals, active from construction in the main thread; call ``close`` at the end.

    Args:
        on_interrupt: function that ends other ranks. It is called on a separate thread, after a second Ctrl-C or a
            SIGTERM during :meth:`waiting`.
    """

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt, self._is_waiting = on_interrupt, False
        self._is_active = threading.current_thread() is threading.main_thread()
        if self._is_active:
            self._receiver, self._sender = socket.socketpair()
            self._sender.setblocking(False)
            self._previous_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, name="marft-signals", daemon=True).start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for other ranks."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def _watch(self) -> None:
        interrupt_count = 0
        while numbers := self._receiver.recv(64):
            interrupt_count += numbers.count(signal.SIGINT)
            if interrupt_count > 1 or signal.SIGTERM in numbers:
                time.sleep(GRACE_SECONDS)
                if self._is_waiting:
                    self._on_interrupt()
        self._receiver.close()

    def close(self) -> None:
        """Stop watching; repeated calls have no effect."""
        if self._is_active:
            self._is_active = False
            signal.set_wakeup_fd(self._previous_fd)
            self._sender.close()
