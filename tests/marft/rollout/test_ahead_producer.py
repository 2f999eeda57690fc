"""Who keeps groups in play: which it has, what it lets go of, and that nothing goes on behind its back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from threading import Thread
from typing import Any, cast

import pytest

from marft.common.errors import RunError
from marft.rollout.async_rollout import producer as producers
from marft.rollout.async_rollout.groups import Group
from marft.rollout.async_rollout.producer import IdleClock, Producer
from marft.rollout.runner import RolloutRunner
from tests.helpers import until
from tests.playing_ahead import TASKS, FakeBegun, FakeRollouts, ahead_of, fake


@contextmanager
def producing(rollouts: FakeRollouts) -> Iterator[Producer]:
    producer = Producer(cast("RolloutRunner", rollouts), TASKS)
    try:
        yield producer
    finally:
        producer.close()


def plain() -> FakeRollouts:
    rollouts = fake(ahead_of(2))
    rollouts.at_once = False
    return rollouts


def forked() -> FakeRollouts:
    rollouts = fake(ahead_of(1, "--algorithm", "{name = 'coma'}"))
    rollouts.at_once = False
    return rollouts


class TestWhatItHas:
    def test_groups_that_are_over_come_by_number_without_those_that_failed(self) -> None:
        rollouts = plain()
        with producing(rollouts) as producer:
            producer.put(Group(7, [], []))
            for number in (4, 5, 6):
                producer.begin(number)
            rollouts.finish(2)
            rollouts.begun[1][1].outcome.set_exception(RunError("the engine is gone"))
            assert [group.number for group in producer.finished_groups()] == [6, 7]
            assert producer.unfinished_count == 1

    def test_what_was_played_before_is_let_go_of_too(self) -> None:
        with producing(plain()) as producer:
            producer.put(Group(3, [], []))
            producer.begin(4)
            assert producer.cancel() == 2
            assert not producer.has_group(3)
            assert producer.cancel() == 0

    def test_of_a_group_that_was_taken_nothing_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rollouts, ended = plain(), list[FakeBegun]()
        with producing(rollouts) as producer:
            producer.begin(0)
            producer.begin(1)
            rollouts.finish(0)
            producer.take(0)
            monkeypatch.setattr(rollouts, "end", ended.extend)
            producer.cancel()
        assert ended == [rollouts.begun[1][1]]

    def test_whoever_waits_sleeps_until_one_of_the_groups_in_play_is_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rollouts, awaited = plain(), list[int]()

        def wait(groups: list[Future[Group]], **_: object) -> None:
            awaited.append(len(groups))
            rollouts.finish(len(awaited))

        monkeypatch.setattr(producers, "wait", wait)
        with producing(rollouts) as producer:
            for number in range(4):
                producer.begin(number)
            rollouts.finish(0)
            producer.take(2)
        assert awaited == [3, 2]

    @pytest.mark.parametrize("fails", [False, True])
    def test_nothing_is_played_from_when_the_last_group_is_over(self, fails: bool) -> None:
        rollouts, now = plain(), [0.0]
        with producing(rollouts) as producer:
            producer.clock = IdleClock(lambda: now[0])
            producer.begin(0)
            now[0] = 2.0
            if fails:
                rollouts.begun[0][1].outcome.set_exception(RunError("the engine is gone"))
            else:
                rollouts.finish(0)
            now[0] = 5.0
            assert producer.clock.total_idle_seconds() == 3.0


class TestForks:
    """A group that is forked has a thread, which plays several times, one after the other."""

    @pytest.fixture
    def rollouts(self, monkeypatch: pytest.MonkeyPatch) -> FakeRollouts:
        monkeypatch.setattr(producers, "POLL_SECONDS", 0.01)
        return forked()

    def begun(self, producer: Producer, rollouts: FakeRollouts) -> Future[Any]:
        producer.begin(0)
        group = producer._groups[0]
        until(lambda: rollouts.begun, 5.0)
        return group

    def test_one_that_is_let_go_of_waits_no_more_for_what_never_comes(
        self, rollouts: FakeRollouts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rollouts, "end", lambda _: None)
        with producing(rollouts) as producer:
            group = self.begun(producer, rollouts)
            producer.cancel()
            assert isinstance(group.exception(5.0), CancelledError)

    def test_one_that_is_let_go_of_begins_nothing_more(
        self, rollouts: FakeRollouts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where what it waited for comes in that very moment."""
        monkeypatch.setattr(rollouts, "end", lambda _: rollouts.finish(0))
        with producing(rollouts) as producer:
            group = self.begun(producer, rollouts)
            producer.cancel()
            assert isinstance(group.exception(5.0), CancelledError)
        assert len(rollouts.begun) == 1

    def test_closing_waits_for_none_and_then_none_is_begun(
        self, rollouts: FakeRollouts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(producers, "POLL_SECONDS", 5.0)
        monkeypatch.setattr(rollouts, "end", lambda _: None)
        with producing(rollouts) as producer:
            self.begun(producer, rollouts)
            closing = Thread(target=producer.close, daemon=True)
            closing.start()
            closing.join(1.0)
            assert not closing.is_alive()
            rollouts.finish(0)
            with pytest.raises(RuntimeError, match="after shutdown"):
                producer.begin(1)


def test_a_group_that_is_forked_sleeps_until_what_it_waits_for_is_there_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollouts = forked()

    def wait(futures: list[Future[Any]], seconds: float) -> None:
        assert seconds > 0.0
        rollouts.finish(next(n for n, (_, one, _) in enumerate(rollouts.begun) if one.outcome is futures[0]))

    monkeypatch.setattr(producers, "wait", wait)
    with producing(rollouts) as producer:
        producer.begin(0)
        assert len(producer._groups[0].result(5.0).recorded) > 2
