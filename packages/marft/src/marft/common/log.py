"""Logging: all loggers are children of ``marft``, and a run or a command receives only its own records.

Messages for the user are log records. Without a receiver they go where Python sends them: warnings to stderr.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ROOT = logging.getLogger("marft")
ROOT.setLevel(ROOT.level or logging.INFO)


def get_logger(module: str) -> logging.Logger:
    """Return the logger of a module of any ``marft`` package, a child of ``marft``.

    >>> get_logger("marft.trainer.loop").name, get_logger("marft_extra.games").name
    ('marft.trainer.loop', 'marft.extra.games')
    """
    package, dot, name = module.partition(".")
    return logging.getLogger(package.replace("_", ".", 1) + dot + name)


def write_line(text: str) -> None:
    """Write a line on stderr: the receiver of a child process."""
    sys.stderr.write(f"{text}\n")


class _ReceiverHandler(logging.Handler):
    """Handler for the records of one receiver: its own, and those of threads that belong to no receiver.

    Args:
        receive: function for the text of each record.
        level: lowest level of the records.
        outer: receiver around this one.
    """

    def __init__(self, receive: Callable[[str], None], level: int, outer: _ReceiverHandler | None) -> None:
        super().__init__(max(level, outer.level) if outer else level)
        self.receive, self.outer = receive, outer
        self.inner: list[_ReceiverHandler] = []  # open receivers inside this one
        self.is_open = True
        self._is_receiving = False  # guarded by the handler's lock

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the text of a record, with the traceback of its exception, to the receiver."""
        target = _find_open(_current_handler.get())
        while target is not None and len(target.inner) == 1:  # a thread that started before an inner receiver
            (target,) = target.inner
        is_own = target is self or (target is None and not self.inner)
        if self._is_receiving or not is_own:  # a receiver that logs does not receive its own records
            return
        self._is_receiving = True
        try:
            self.receive(self._text_of(record))
        finally:
            self._is_receiving = False

    def _text_of(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # noqa: BLE001  a wrong format string of a plugin must not end a run
            return f"{record.msg} ({type(error).__name__}: {error})"


def _find_open(handler: _ReceiverHandler | None) -> _ReceiverHandler | None:
    """Return a handler, or the nearest handler around it, whose receiver is open."""
    while handler is not None and not handler.is_open:
        handler = handler.outer
    return handler


_current_handler: ContextVar[_ReceiverHandler | None] = ContextVar("_current_handler", default=None)


@contextmanager
def receive_logs(receive: Callable[[str], None], level: int = logging.INFO) -> Iterator[None]:
    """Pass the log records of a run or a command to a function, in place of an outer receiver.

    The context variable that identifies the receiver is copied by asyncio. A thread that the run starts needs
    ``copy_context().run``; records of other threads go to every innermost receiver.

    Args:
        receive: function for the text of each record; calls come from any thread of the run, one at a time.
        level: lowest level of the records; an outer receiver with a higher level keeps its level.
    """
    outer = _find_open(_current_handler.get())
    handler = _ReceiverHandler(receive, level, outer)
    if outer is not None:
        outer.inner.append(handler)
    token = _current_handler.set(handler)
    ROOT.addHandler(handler)
    try:
        yield
    finally:
        _current_handler.reset(token)
        handler.is_open = False
        ROOT.removeHandler(handler)
        if outer is not None:
            outer.inner.remove(handler)
