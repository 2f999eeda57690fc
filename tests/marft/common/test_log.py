"""Records of a run or a command go to its own receiver, from all threads that it starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import copy_context
from threading import Barrier, Thread

import pytest

from marft.agents.loop_threads import LoopThread
from marft.common.log import ROOT, get_logger, receive_logs
from marft.config.secrets import redacted
from marft.inference.caller_thread import CallerThreadExecutor

logger = get_logger("marft_lab.somewhere")


@pytest.fixture(autouse=True)
def nobody_else_listens() -> Iterator[None]:
    yield
    assert ROOT.handlers == []


def in_thread(text: str) -> None:
    thread = Thread(target=logger.warning, args=(text,))
    thread.start()
    thread.join()


def test_the_innermost_receiver_gets_what_is_as_grave_as_it_asks_for() -> None:
    outer, inner = list[str](), list[str]()
    with receive_logs(outer.append):
        logger.info("one")
        with receive_logs(inner.append, logging.WARNING):
            logger.info("two")
            logger.warning("100 %d")
        logger.info("three %s", 3)
    assert (outer, inner) == (["one", "three 3"], ["100 %d"])


def test_an_exception_comes_with_its_traceback() -> None:
    heard = list[str]()
    with receive_logs(heard.append):
        try:
            raise KeyError("w")
        except KeyError:
            logger.exception("it broke")
    assert heard[0].startswith("it broke\nTraceback")
    assert heard[0].endswith("KeyError: 'w'")


def test_runs_in_threads_hear_their_own_records_and_those_of_no_run() -> None:
    together, heard = Barrier(2), [list[str](), list[str]()]

    def run(number: int) -> None:
        with receive_logs(heard[number].append), ExitStack() as stack:
            caller, session = CallerThreadExecutor(), LoopThread()
            stack.callback(caller.shutdown)
            stack.callback(session.stop)

            def fails() -> None:
                raise ValueError(f"{number} of a loop")

            async def game() -> None:
                logger.warning(f"{number} of the game")
                await session.call(logger.warning, f"{number} of a session", timeout=None)
                await asyncio.to_thread(logger.warning, f"{number} of a thread")
                asyncio.get_running_loop().call_soon(fails)
                await asyncio.sleep(0.01)

            together.wait()
            caller.wait_for(game())
            together.wait()
            if number:
                in_thread("of no run")
            together.wait()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, range(2)))
    for number in range(2):
        *own, fault, last = heard[number]
        assert own == [f"{number} of {place}" for place in ("the game", "a session", "a thread")]
        assert f"ValueError: {number} of a loop" in fault
        assert last == "of no run"


def test_what_outlives_its_run_is_heard_by_all() -> None:
    heard, loud = list[str](), Barrier(2)

    def lingers() -> None:
        loud.wait()
        logger.warning("still here")
        loud.wait()

    with receive_logs(lambda text: None):
        thread = Thread(target=copy_context().run, args=(lingers,))
        thread.start()
    with receive_logs(heard.append):
        loud.wait()
        loud.wait()
    thread.join()
    assert heard == ["still here"]


def test_a_run_that_fails_leaves_no_receiver(caplog: pytest.LogCaptureFixture) -> None:
    with suppress(ZeroDivisionError), receive_logs(lambda text: None):
        raise ZeroDivisionError
    logger.info("nobody")
    assert caplog.messages == ["nobody"]


def test_two_runs_below_one_receiver_do_not_hear_each_other() -> None:
    heard, together = {"outer": list[str](), "a": list[str](), "b": list[str]()}, Barrier(2)

    def run(name: str) -> None:
        together.wait()
        with receive_logs(heard[name].append):
            together.wait()
            logger.warning(name)
            together.wait()
        together.wait()

    with receive_logs(heard["outer"].append):
        threads = [Thread(target=copy_context().run, args=(run, name)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        logger.warning("outer")
    assert heard == {"outer": ["outer"], "a": ["a"], "b": ["b"]}


def test_a_thread_that_began_before_a_receiver_is_heard_by_it() -> None:
    outer, inner = list[str](), list[str]()
    with receive_logs(outer.append):
        context = copy_context()
        with receive_logs(inner.append):
            context.run(logger.warning, "late")
    assert (outer, inner) == ([], ["late"])


def test_a_quiet_command_keeps_a_run_quiet() -> None:
    heard = list[str]()
    with receive_logs(heard.append, logging.WARNING), receive_logs(heard.append):
        logger.info("much")
        logger.warning("little")
    assert heard == ["little"]


def test_a_receiver_that_logs_and_a_wrong_format_end_nothing() -> None:
    heard = list[str]()

    def echo(text: str) -> None:
        heard.append(text)
        logger.warning("again")

    with receive_logs(echo):
        logger.warning("%d apples", "two")
    assert len(heard) == 1
    assert heard[0].startswith("%d apples (TypeError: ")


def test_keys_are_masked_on_the_way_to_the_user() -> None:
    heard = list[str]()
    with receive_logs(redacted(heard.append)):
        logger.warning("asked with sk-proj-abcdefghijklmnopqrstuvwxyz0123456789")
    assert heard == ["asked with ***"]
