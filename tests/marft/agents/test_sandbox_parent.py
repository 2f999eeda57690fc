"""A jail ends with the process that asked for it, at whatever moment that is, and leaves nothing on the machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from marft.agents.sandbox import jail, runner
from marft.agents.sandbox.runner import SandboxSettings, isolation_problem, run_python, terminate_all
from tests.helpers import until
from tests.nights import BY_NIGHT

TRIALS = 40
SLEEP = "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(300)"
isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
MINE = random.Random().randrange(10, 35)  # underscores; others may run the same tests at the same time
MODES = [pytest.param("required", marks=isolated), "none"]


def named(underscores: int) -> dict[str, bytes]:
    """Files after which the program needs so many underscores before its name, by which it is found."""
    return {"_" * n + "program.py": b"" for n in range(underscores)}


def processes(words: Callable[[list[str]], bool]) -> list[int]:
    """Processes of the machine by their command lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if words((folder / "cmdline").read_text(errors="replace").split("\0")):
                found.append(int(folder.name))
    return found


def soon(left: Callable[[], object]) -> object:
    """What is left after some time in which everything may go."""
    until = time.monotonic() + 10
    while (found := left()) and time.monotonic() < until:
        time.sleep(0.02)
    return found


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("isolation", MODES)
def test_a_parent_that_is_killed_at_any_moment_leaves_no_process_and_no_folder(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    underscores = random.Random().randrange(40, 200)
    program = "_" * underscores + "program.py"
    delays = [0.03 * n / TRIALS for n in range(TRIALS)] + [0.1, 0.2, 0.4]
    parents = []
    for number, delay in enumerate(delays):
        parent = os.fork()
        if parent == 0:
            if number % 2:  # which what it starts would inherit
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            run_python(SLEEP, SandboxSettings(timeout_seconds=60, isolation=isolation), files=named(underscores))
            os._exit(0)
        time.sleep(delay)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        parents.append(str(parent))

    def of_these(words: list[str]) -> bool:
        return program in words or (words[3:4] == [str(runner.JAIL_PATH)] and words[4] in parents)

    assert soon(lambda: [*processes(of_these), *tmp_path.iterdir()]) == []


def test_a_process_that_stays_would_be_seen() -> None:
    """The check above can fail."""
    underscores = MINE
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "_" * underscores + "program.py"])
    assert soon(lambda: not processes(lambda words: "_" * underscores + "program.py" in words)) is False
    child.kill()
    child.wait()


@pytest.mark.slow
@pytest.mark.parametrize("isolation", MODES)
def test_nothing_is_left_of_code_that_was_stopped_or_ended(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for code in (SLEEP, "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)"):
        run_python(code, SandboxSettings(timeout_seconds=0.7, isolation=isolation), files=named(MINE + 1))
    assert processes(lambda words: "_" * (MINE + 1) + "program.py" in words) == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_leaves_no_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[subprocess.Popen[bytes]] = []
    end = runner._terminate
    monkeypatch.setattr(runner, "_terminate", lambda process: (end(process), ended.append(process)))
    assert run_python("print(1)", SandboxSettings(isolation="none")).output == "1\n"
    assert [pipe.closed for one in ended for pipe in (one.stdin, one.stdout, one.stderr) if pipe] == [True] * 3


@isolated
def test_an_isolated_run_makes_no_folder_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert run_python("open('a', 'w').write('b')\nprint(open('a').read())").output == "b\n"


@isolated
def test_a_keeper_that_is_killed_takes_its_jail_with_it() -> None:
    seen: list[int] = []

    def kill_the_keeper() -> None:
        until(lambda: len(processes(lambda words: "_" * (MINE + 2) + "program.py" in words)) == 2)
        seen.extend(processes(lambda words: "_" * (MINE + 2) + "program.py" in words))
        (process,) = runner._running
        process.kill()

    threading.Thread(target=kill_the_keeper, daemon=True).start()
    assert run_python(SLEEP, SandboxSettings(timeout_seconds=30), files=named(MINE + 2)).outcome == "killed"
    assert len(seen) == 2
    assert not soon(lambda: processes(lambda words: "_" * (MINE + 2) + "program.py" in words))


@isolated
def test_ending_all_ends_code_at_once() -> None:
    timer = threading.Timer(1.0, terminate_all)
    timer.start()
    ran = run_python(SLEEP, SandboxSettings(timeout_seconds=60), files=named(MINE + 3))
    assert ran.outcome == "killed"
    assert ran.seconds < 20
    assert processes(lambda words: "_" * (MINE + 3) + "program.py" in words) == []


def keeper(code: str, ignored: signal.Signals) -> subprocess.Popen[bytes]:
    """A keeper whose parent ignores a signal, which it inherits."""
    order = runner._build_order(code, SandboxSettings(isolation="none"), "", {})
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(runner.JAIL_PATH), str(os.getpid())], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={}, preexec_fn=lambda: signal.signal(ignored, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stdin
    if code:
        process.stdin.write(json.dumps(order).encode())
        process.stdin.close()
    return process


def test_a_keeper_can_be_ended_before_it_knows_what_to_do() -> None:
    process = keeper("", signal.SIGTERM)

    def lives() -> bool:
        process.terminate()  # until it is listened to
        return process.poll() is None

    with process:
        soon(lives)
        process.kill()
    assert process.returncode == -signal.SIGTERM


def test_a_keeper_learns_that_its_code_has_ended_whatever_its_parent_ignores() -> None:
    with keeper("import sys; sys.exit(7)", signal.SIGCHLD) as process:
        soon(lambda: process.poll() is None)
        process.terminate()
    assert process.returncode == 7


def test_a_first_process_whose_keeper_has_gone_before_it_asks_for_its_death_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, ended = tmp_path / "built", os.pipe()
    monkeypatch.setattr(jail, "write_text", lambda path, text: (built.touch(), os._exit(0)))
    monkeypatch.setattr(jail.kernel, "prctl", lambda option, value: time.sleep(0.3))  # the keeper has gone by then
    monkeypatch.setattr(jail.group, "join_group", lambda own, first: os._exit(0))
    if (pid := os.fork()) == 0:
        os.close(ended[0])
        jail.run_init_process({"folder": "/work"}, "")
    os.close(ended[1])
    os.waitpid(pid, 0)
    assert os.read(ended[0], 1) == b""  # both have ended
    os.close(ended[0])
    assert not built.exists()
