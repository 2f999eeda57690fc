"""A signal that strikes where Python drops exceptions ends the command all the same."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import weakref

import pytest

from marft.cli.shutdown import handle_sigterm, resend_dropped


class Thing:
    pass


def struck_in_a_callback(number: signal.Signals) -> None:
    """Have a signal come while the callback of a weak reference runs, then wait."""
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), number))
    del thing
    gc.collect()
    assert reference() is None
    time.sleep(30.0)


def test_ctrl_c_in_a_callback_ends_what_runs() -> None:
    with pytest.raises(KeyboardInterrupt), resend_dropped():
        struck_in_a_callback(signal.SIGINT)


def test_a_request_to_end_in_a_callback_ends_what_runs() -> None:
    before = signal.signal(signal.SIGTERM, handle_sigterm)
    try:
        with pytest.raises(SystemExit) as ended, resend_dropped():
            struck_in_a_callback(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM


def test_other_dropped_exceptions_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_value))
    with resend_dropped():
        thing = Thing()
        reference = weakref.ref(thing, lambda _: 1 / 0)
        del thing
        gc.collect()
    assert reference() is None
    assert [type(error) for error in told] == [ZeroDivisionError]
