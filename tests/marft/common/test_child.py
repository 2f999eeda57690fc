"""A process of ours from outside: how it ended, what it prints, and that nobody else's Ctrl-C is its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marft.common.processes.child_process import ChildProcess, Command
from marft.common.processes.launcher import LocalLauncher, start_all
from tests.helpers import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes end with us on Linux alone")


def shell(script: str) -> Command:
    return lambda descriptor: ["sh", "-c", script]


def begun() -> ChildProcess:
    """A process that would be there for long."""
    child = ChildProcess("worker 7", shell("echo begun; exec sleep 300"), quiet=True)
    until(lambda: child.output_tail)
    return child


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("exit 0", "ended itself (exit status 0)"),
        ("exit 3", "ended itself (exit status 3)"),
        ("exit 255", "ended itself (exit status 255)"),
        ("kill -SEGV $$", "was killed (SIGSEGV)"),
    ],
)
def test_how_it_ended_is_said(script: str, how: str) -> None:
    child = ChildProcess("worker 7", shell(script), quiet=True)
    assert child.wait_or_terminate() == child.wait_or_terminate() == how
    child.close()


def test_one_that_is_ended_hears_of_it_before_it_is_killed() -> None:
    child = begun()
    child.end()
    assert child.wait_or_terminate() == "was killed (SIGTERM)"
    child.close()


def test_one_that_was_stopped_hears_of_its_end() -> None:
    child = begun()
    os.kill(child._process.pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{child._process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    try:
        child.end()
        assert child._process.wait(5) == 128 + signal.SIGTERM
    finally:
        child._process.kill()
        child.close()


def test_what_it_prints_is_shown_with_its_name_as_something_that_no_terminal_obeys(
    capfd: pytest.CaptureFixture[str],
) -> None:
    child = ChildProcess("worker 7", shell(r"printf '\033[31mred\n'; echo bad >&2"))
    child.wait_or_terminate()
    first, second = capfd.readouterr().err.splitlines()
    assert (first.startswith("worker 7: "), "\033" in first, "red" in first, second) == (
        True,
        False,
        True,
        "worker 7: bad",
    )
    child.close()


def test_it_has_a_session_of_its_own_so_that_ctrl_c_in_the_terminal_is_ours_alone() -> None:
    program = "import os; print(os.getsid(0))"
    child = ChildProcess("worker 7", lambda _: [sys.executable, "-I", "-S", "-c", program], quiet=True)
    child.wait_or_terminate()
    assert list(child.output_tail) != [str(os.getsid(0))]
    child.close()


def test_where_one_cannot_be_started_the_others_are_ended() -> None:
    ended: list[str] = []

    class Starter(LocalLauncher):
        def start(self, name: str, command: Command, *, quiet: bool = False, slot: int = 0) -> Any:
            if slot == 1:
                raise ValueError("no such Python")
            return SimpleNamespace(close=lambda: ended.append(name))

    def nothing(_: int) -> Sequence[str]:
        return []

    with pytest.raises(ValueError, match="no such Python"):
        start_all(Starter(), ["a", "b", "c"], nothing)
    assert sorted(ended) == ["a", "c"]
    assert len(start_all(Starter(), ["a"], nothing)) == 1
