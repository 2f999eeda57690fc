"""Whoever waits for other ranks is no longer deaf to Ctrl-C: they are let go of, and what it raises is raised."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from marft.trainer.ranks import distributed_learner as heeding
from marft.trainer.ranks.distributed_learner import SignalWatcher
from tests.helpers import until


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handlers that do nothing, as those that come too late."""
    monkeypatch.setattr(heeding, "GRACE_SECONDS", 0.01)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
@pytest.mark.usefixtures("unheard")
def test_ranks_are_let_go_of_once_a_signal_that_ends_the_run_finds_it_waiting(signals: tuple[int, ...]) -> None:
    let_go = threading.Event()
    hears = SignalWatcher(let_go.set)
    with hears.waiting():
        for number in signals:
            assert not let_go.is_set(), "the first Ctrl-C is a wish to stop after the step"
            os.kill(os.getpid(), number)
            time.sleep(0.05)
        until(let_go.is_set)
    hears.close()


@pytest.mark.usefixtures("unheard")
def test_nobody_is_let_go_of_where_nobody_is_waited_for_or_it_is_closed() -> None:
    let_go, before = threading.Event(), signal.set_wakeup_fd(-1)
    hears = SignalWatcher(let_go.set)
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    for _ in range(2):
        hears.close()
    assert not let_go.is_set()
    assert signal.set_wakeup_fd(before) == -1, "whoever was told of signals before is told again"


def test_on_another_thread_nothing_is_heard_and_nothing_goes_wrong() -> None:
    made: list[SignalWatcher] = []
    thread = threading.Thread(target=lambda: made.append(SignalWatcher(lambda: None)))
    thread.start()
    thread.join()
    with made[0].waiting():
        made[0].close()
