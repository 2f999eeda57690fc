"""The subreaper above a server: what it starts ends with whoever asked for it, and nothing else is changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marft.common.processes import SUBREAPER

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are watched on Linux alone")
TREE = "setsid sleep 300 & sh -c 'echo $$; exec sleep 300' & echo $!; sleep 300; true"


def start(command: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()), "sh", "-c", command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def members(process: subprocess.Popen[str]) -> list[int]:
    """All that runs under the subreaper."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [process.pid]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def soon(claim: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.02)
    return claim()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@linux
def test_streams_and_status_are_the_commands() -> None:
    process = start("cat; echo bad >&2; exit 7")
    assert process.communicate("hello\n", timeout=10) == ("hello\n", "bad\n")
    assert process.returncode == 7
    killed = start("kill -9 $$")
    killed.communicate(timeout=10)
    assert killed.returncode == 128 + 9


@linux
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR1])
def test_all_that_a_launcher_has_started_ends_with_it(how: signal.Signals) -> None:
    process = start(TREE)
    assert soon(lambda: len(members(process)) == 4)
    pids = members(process)
    process.send_signal(how)
    process.communicate(timeout=10)
    assert soon(lambda: all(map(gone, pids)))


@linux
def test_a_request_to_end_that_comes_while_the_command_is_started_reaches_it() -> None:
    early = (
        "import os, runpy, signal, sys\n"
        "fork = os.fork\n"
        "def forked():\n"
        "    child = fork()\n"
        "    if child:\n"
        "        print(child, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return child\n"
        "os.fork = forked\n"
        "sys.argv = ['subreaper', str(os.getppid()), 'sleep', '300']\n"
        f"runpy.run_path({str(SUBREAPER)!r}, run_name='__main__')\n"
    )
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", early], stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=10)
    assert process.returncode in {128 + signal.SIGTERM, 128 + signal.SIGKILL}
    assert soon(lambda: gone(int(said)))


@linux
def test_word_that_the_parent_is_gone_which_comes_again_while_it_is_heeded_is_in_nobodys_way() -> None:
    """It comes once for every thread of the parent."""
    twice = (
        "import os, runpy, signal, sys\n"
        "fork, change, told = os.fork, signal.signal, []\n"
        "def forked():\n"
        "    child = fork()\n"
        "    if child:\n"
        "        print(child, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGUSR1)\n"
        "    return child\n"
        "def changed(number, how):\n"
        "    if how == signal.SIG_IGN and not told:\n"
        "        told.append(number)\n"
        "        os.kill(os.getpid(), signal.SIGUSR1)\n"
        "    return change(number, how)\n"
        "os.fork, signal.signal = forked, changed\n"
        "sys.argv = ['subreaper', str(os.getppid()), 'sleep', '300']\n"
        f"runpy.run_path({str(SUBREAPER)!r}, run_name='__main__')\n"
    )
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", twice], stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGKILL
    assert soon(lambda: gone(int(said)))


@linux
def test_nothing_is_started_for_a_parent_that_had_gone_before_it_could_be_watched() -> None:
    words = [sys.executable, "-I", "-S", str(SUBREAPER), "0", "sh", "-c", "echo begun"]
    assert subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=10).stdout == b""


@linux
def test_a_tracker_of_shared_memory_that_does_not_end_by_itself_is_waited_for_a_moment_alone() -> None:
    stuck = "import time; time.sleep(300)  # from multiprocessing.resource_tracker import main"
    process = start(f"{sys.executable} -c '{stuck}' & sleep 300; true")
    assert soon(lambda: len(members(process)) == 3)
    pids = members(process)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=10)
    assert soon(lambda: all(map(gone, pids)))


@linux
def test_a_command_that_will_not_end_is_killed() -> None:
    process = start("trap '' TERM; echo up; while true; do sleep 0.05; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(timeout=5) == 128 + 9


@linux
def test_all_ends_with_a_run_that_is_killed() -> None:
    code = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-I', '-S', {str(SUBREAPER)!r}, str(os.getpid()), 'sh', '-c', {TREE!r}])\n"
        "time.sleep(300)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, text=True)
    assert soon(lambda: len(members(process)) == 5)
    pids = members(process)
    process.kill()
    process.wait()
    assert soon(lambda: all(map(gone, pids)))


@linux
def test_a_parent_that_goes_thread_by_thread_says_so_many_times() -> None:
    for _ in range(10):
        process = start("sh -c 'echo $$; exec sleep 300' & sleep 300; true")
        assert process.stdout is not None
        below = int(process.stdout.readline())
        for _ in range(200):
            process.send_signal(signal.SIGUSR1)
        process.wait(timeout=10)
        assert gone(below)


@linux
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is seen there")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR1])
def test_shared_memory_of_what_is_ended_is_taken_away(how: signal.Signals) -> None:
    holding = (
        "import time; from multiprocessing import shared_memory\n"
        "held = shared_memory.SharedMemory(create=True, size=8); print(held.name, flush=True); time.sleep(300)"
    )
    process = start(f'exec {sys.executable} -c "{holding}"')
    assert process.stdout is not None
    held = Path("/dev/shm") / process.stdout.readline().strip()
    assert held.is_file()
    process.send_signal(how)
    process.communicate(timeout=10)
    assert soon(lambda: not held.exists())
