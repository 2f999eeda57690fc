"""How often a process is started again, what is said when it is given up, and that none is left behind."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.common.errors import RunError
from marft.common.processes.child_process import KILLED
from marft.common.processes.launcher import Launcher
from marft.common.processes.supervisor import MAX_LOG_LINES, MAX_STARTS, RestartPolicy, Supervisor
from tests.helpers import until

CRASH = "ended itself (exit status 3)"


@pytest.mark.parametrize(
    ("reasons", "starts"),
    [([CRASH] * 9, 3), ([KILLED] * 9, 8), ([KILLED, CRASH] * 9, 6), ([KILLED] * 7 + [CRASH] * 9, 8)],
)
def test_crashes_and_kills_have_limits_of_their_own_until_something_succeeds(reasons: list[str], starts: int) -> None:
    policy = RestartPolicy(max_starts=8, max_crashes=3)
    for turn in range(2):
        count = 0
        while policy.may_start:
            policy.record_exit(reasons[count])
            count += 1
        assert (count, policy.exit_count) == (starts, starts * (turn + 1))
        policy.reset()


def test_the_last_lines_of_the_last_process_are_told() -> None:
    policy = RestartPolicy()
    policy.record_exit(CRASH, ["of another process"])
    policy.record_exit(CRASH)
    assert policy.last_exit == CRASH
    policy.record_exit(KILLED, [f"line {number}" for number in range(MAX_LOG_LINES + 3)])
    first, *lines = policy.last_exit.splitlines()
    assert first == f"{KILLED}; the last that it said:"
    assert lines == [f"line {number}" for number in range(3, MAX_LOG_LINES + 3)]
    assert policy.max_crashes == MAX_STARTS


class Starts:
    """Starts nothing, after as long as it is let."""

    def __init__(self) -> None:
        self.begun, self.free, self.ended, self.given = threading.Event(), threading.Event(), 0, list[Any]()

    def start(self, *given: object, **options: object) -> Any:
        self.begun.set()
        assert self.free.wait(10)
        self.given.append((*given, options))
        return SimpleNamespace(end=self.end)

    def end(self) -> None:
        self.ended += 1


def test_a_process_is_started_in_its_slot_and_what_fails_is_raised() -> None:
    starts = Starts()
    starts.free.set()
    supervisor = Supervisor(cast("Launcher", starts), "worker 1", list, slot=1, quiet=True)
    asyncio.run(supervisor.start())
    supervisor.close()
    assert starts.given == [("worker 1", list, {"slot": 1, "quiet": True})]
    assert starts.ended == 0, "whoever has it ends it"

    def full(*_: object, **__: object) -> Any:
        raise RunError("no room")

    starts.start = full  # type: ignore[method-assign]
    with pytest.raises(RunError, match="no room"):
        asyncio.run(supervisor.start())


@pytest.mark.parametrize("late", [True, False])
def test_a_process_whose_start_nobody_waits_for_is_ended(late: bool) -> None:
    async def whole() -> None:
        starting = asyncio.create_task(supervisor.start())
        await asyncio.to_thread(starts.begun.wait, 10)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if late:
            supervisor.close()
        starts.free.set()

    starts = Starts()
    supervisor = Supervisor(cast("Launcher", starts), "engine", list)
    asyncio.run(whole())
    if not late:
        until(lambda: len(starts.given) == 1, 5.0)
        supervisor.close()
    until(lambda: starts.ended == 1, 5.0)
