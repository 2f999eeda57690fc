"""The threads that sessions live on: what they tell of calls, whom they serve next, and how they end."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from marft.agents import loop_threads
from marft.agents.loop_threads import CallTimeoutError, LoopThread, LoopThreadPool, UserCodeError

LONG = 30.0  # seconds: never waited for where all is well


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For machines that are busy."""
    monkeypatch.setattr(loop_threads, "GRACE_SECONDS", LONG)


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, LONG))


def ended(thread: LoopThread) -> bool:
    thread._thread.join(LONG)
    return not thread._thread.is_alive() and thread.loop.is_closed()


async def forever() -> None:
    await asyncio.Event().wait()


def blocking() -> tuple[Callable[[], bool], threading.Event]:
    """What blocks its thread until an event is set."""
    free = threading.Event()
    return (lambda: free.wait(LONG)), free


class TestCalls:
    def test_what_takes_too_long_is_overdue_and_says_so(self, thread: LoopThread) -> None:
        with pytest.raises(CallTimeoutError, match=r"it took over 0\.05 s"):
            run(thread.call(forever, timeout=0.05))

    def test_a_timeout_that_a_call_raises_is_its_own(self, thread: LoopThread) -> None:
        async def late() -> None:
            raise TimeoutError("of its own")

        with pytest.raises(TimeoutError, match="of its own") as caught:
            run(thread.call(late, timeout=LONG))
        assert not isinstance(caught.value, CallTimeoutError)

    def test_errors_of_ours_come_as_they_are(self, thread: LoopThread) -> None:
        def refuse() -> None:
            raise LookupError("ours")

        with pytest.raises(LookupError, match="ours"):
            run(thread.call_user_code(refuse, timeout=LONG, passthrough=LookupError))
        with pytest.raises(UserCodeError, match=r"LookupError: ours \(test_loop_threads.py:"):
            run(thread.call_user_code(refuse, timeout=LONG))

    def test_who_is_cancelled_is_cancelled(self, thread: LoopThread) -> None:
        async def cancelled() -> bool:
            waiting = asyncio.create_task(thread.call_user_code(forever, timeout=None))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
            return waiting.cancelled() and await thread.is_responsive()

        assert run(cancelled())

    def test_a_call_that_calls_itself_off_has_raised(self, thread: LoopThread) -> None:
        async def give_up() -> None:
            raise asyncio.CancelledError

        with pytest.raises(UserCodeError, match="CancelledError"):
            run(thread.call_user_code(give_up, timeout=LONG))

    def test_a_call_that_cancels_its_own_task_has_raised(self, thread: LoopThread) -> None:
        async def cancel() -> None:
            task = asyncio.current_task()
            assert task
            task.cancel()
            await asyncio.sleep(0)

        with pytest.raises(UserCodeError, match="the call cancelled itself"):
            run(thread.call_user_code(cancel, timeout=LONG))

    def test_a_task_that_exits_ends_no_thread(self, thread: LoopThread) -> None:
        async def leave() -> None:
            raise SystemExit(3)

        async def start() -> None:
            asyncio.ensure_future(leave())  # noqa: RUF006

        run(thread.call(start, timeout=LONG))
        assert run(thread.call(lambda: 7, timeout=LONG)) == 7
        thread.stop()
        assert ended(thread)

    def test_whatever_a_call_raises_it_serves_the_next(self, thread: LoopThread) -> None:
        def leave() -> None:
            raise SystemExit(3)

        with pytest.raises(UserCodeError, match="SystemExit"):
            run(thread.call_user_code(leave, timeout=LONG))
        with pytest.raises(RuntimeError, match="SystemExit"):
            run(thread.call(leave, timeout=LONG))
        assert run(thread.call(lambda: 7, timeout=LONG)) == 7


class TestAThread:
    def test_it_is_not_responsive_while_a_call_blocks_it_or_goes_on(
        self, thread: LoopThread, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop_threads, "GRACE_SECONDS", 0.1)
        block, free = blocking()

        async def go_on() -> None:
            while not free.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)

        async def during(call: Callable[[], Any]) -> bool:
            with pytest.raises(CallTimeoutError):
                await thread.call(call, timeout=0.05)
            return await thread.is_responsive()

        assert not run(during(block))
        free.set()
        assert run(thread.call(lambda: 7, timeout=LONG)) == 7
        free.clear()
        assert not run(during(go_on))
        free.set()

    def test_what_a_session_leaves_behind_is_cancelled(self, thread: LoopThread) -> None:
        left: list[asyncio.Task[None]] = []

        async def leave() -> None:
            left.append(asyncio.create_task(forever()))
            await asyncio.sleep(0)

        run(thread.call(leave, timeout=LONG))
        assert run(thread.cancel_tasks())
        assert left[0].cancelled()

    def test_what_does_not_end_at_once_is_cancelled_again(self, thread: LoopThread) -> None:
        left: list[asyncio.Task[None]] = []

        async def cling() -> None:
            with suppress(asyncio.CancelledError):
                await forever()
            await forever()

        async def leave() -> None:
            left.append(asyncio.create_task(cling()))
            await asyncio.sleep(0)

        run(thread.call(leave, timeout=LONG))
        assert run(thread.cancel_tasks())
        assert left[0].cancelled()

    def test_one_that_is_stopped_cancels_what_is_left_and_ends(self, thread: LoopThread) -> None:
        left: list[asyncio.Task[None]] = []

        async def leave() -> None:
            left.append(asyncio.create_task(forever()))
            await asyncio.sleep(0)

        run(thread.call(leave, timeout=LONG))
        thread.stop()
        assert ended(thread)
        assert left[0].cancelled()

    def test_what_is_asked_for_later_runs_when_it_is_free(self, thread: LoopThread) -> None:
        block, free = blocking()
        done = threading.Event()
        with pytest.raises(CallTimeoutError):
            run(thread.call(block, timeout=0.05))
        thread.call_later(done.set)
        assert not done.wait(0.05)
        free.set()
        assert done.wait(LONG)

    @pytest.mark.slow
    def test_one_whose_loop_is_closed_says_so_and_leaves_nothing_unawaited(self, thread: LoopThread) -> None:
        thread.stop()
        assert ended(thread)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with pytest.raises(UserCodeError, match="closed"):
                run(thread.call(forever, timeout=LONG))
            assert not run(thread.is_responsive())
            assert not run(thread.cancel_tasks())
            thread.call_later(lambda: None)
            thread.stop()
            gc.collect()
        assert [str(warning.message) for warning in seen if "awaited" in str(warning.message)] == []

    def test_what_nobody_waits_for_complains_in_one_line(
        self, thread: LoopThread, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fail() -> None:
            raise ValueError("two\nlines \x1b[2J")

        async def leave() -> None:
            asyncio.ensure_future(fail())  # noqa: RUF006
            await asyncio.sleep(0)

        run(thread.call(leave, timeout=LONG))
        until = time.monotonic() + LONG
        while not (mine := [said for said in caplog.messages if "two" in said]) and time.monotonic() < until:
            run(thread.call(gc.collect, timeout=LONG))
        (message,) = mine  # tasks of other tests may complain late
        assert message.startswith("a task that nobody waits for failed: ValueError: two")
        assert not set("\n\x1b") & set(message)


class TestThePool:
    def test_a_thread_serves_the_next_session_unless_one_has_failed_on_it(self) -> None:
        pool = LoopThreadPool()

        async def sessions() -> tuple[bool, bool, LoopThread]:
            first = pool.acquire()
            await pool.release(first, failed=False)
            second = pool.acquire()
            await pool.release(second, failed=True)
            third = pool.acquire()
            await pool.release(third, failed=False)
            return second is first, third is second, second

        again, after_failure, suspect = run(sessions())
        assert (again, after_failure, pool.blocked_threads) == (True, False, 0)
        assert ended(suspect)
        pool.close()

    @pytest.mark.parametrize("suspect", [True, False])
    def test_one_that_does_not_come_back_is_given_up_and_ends_when_it_does(
        self, suspect: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop_threads, "GRACE_SECONDS", 0.1)
        pool = LoopThreadPool()
        block, free = blocking()

        async def session() -> LoopThread:
            thread = pool.acquire()
            with pytest.raises(CallTimeoutError):
                await thread.call(block, timeout=0.05)
            await pool.release(thread, failed=suspect)
            assert pool.acquire() is not thread
            return thread

        thread = run(session())
        assert pool.blocked_threads == 1
        free.set()
        assert ended(thread)

    def test_a_call_that_was_cancelled_is_let_come_to_its_end(self) -> None:
        pool, cleaned = LoopThreadPool(), threading.Event()

        async def cleans_up() -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(0.05)
                cleaned.set()

        async def session() -> None:
            thread = pool.acquire()
            with pytest.raises(CallTimeoutError):
                await thread.call(cleans_up, timeout=0.05)
            await pool.release(thread, failed=True)

        run(session())
        assert cleaned.is_set()
        assert pool.blocked_threads == 0

    def test_closing_it_ends_its_threads(self) -> None:
        pool = LoopThreadPool()
        threads = [pool.acquire(), pool.acquire()]

        async def give_back() -> None:
            for thread in threads:
                await pool.release(thread, failed=False)

        run(give_back())
        pool.close()
        assert all(ended(thread) for thread in threads)
        assert pool.acquire() not in threads

    def test_so_many_calls_of_a_kind_are_under_way_at_a_time_and_no_more(self) -> None:
        pool = LoopThreadPool()

        async def two_of_three() -> list[bool]:
            slots = pool.slots("judge", 2)
            assert pool.slots("judge", 2) is slots
            await slots.acquire()
            before = slots.locked()
            await slots.acquire()
            return [before, slots.locked(), pool.slots("other", 1).locked()]

        assert run(two_of_three()) == [False, True, False]
        assert run(two_of_three()) == [False, True, False]  # another loop, another semaphore
