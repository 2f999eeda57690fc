"""A run that is cancelled, however, leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from marft.agents.sandbox.runner import SandboxSettings, isolation_problem, run_python
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Environment
from tests import templates
from tests.helpers import recipe
from tests.nights import NIGHT
from tests.sources import ROOT, TESTS

SERVER = TESTS / "mcp_server.py"


class Busy(Environment):
    """Sessions that hold a process of their own, and run code in the sandbox that does not end by itself."""

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}/{number}", "1 + 1 =") for number in range(4)]

    def start(self, task: Task, seed: int) -> BusySession:
        return BusySession()


class BusySession:
    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    async def reset(self) -> Observation:
        return Observation("1 + 1 =")

    async def step(self, actions: JointAction) -> Step:
        limits = SandboxSettings(timeout_seconds=300.0, isolation="none" if isolation_problem() else "required")
        run_python("import time\ntime.sleep(300)", limits)
        return Step(Observation(""), 0.0, terminated=True)

    async def close(self) -> None:
        self.child.kill()
        self.child.wait()


def descendants(pid: int) -> dict[int, str]:
    """Processes below this one, with their command lines."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            state, parent = re.search(r"\) (\S) (\d+)", (folder / "stat").read_text()).groups()  # type: ignore[union-attr]
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, AttributeError):
            continue
        if state != "Z":
            found[int(folder.name)] = f"{parent} {line}"
    below, grew = {pid}, True
    while grew:
        new = {child for child, about in found.items() if int(about.split()[0]) in below} - below
        below |= new
        grew = bool(new)
    return {child: found[child] for child in below - {pid}}


def write(tmp_path: Path, processes: int) -> Path:
    template = tmp_path / "template.jinja"
    template.write_text(templates.HERMES)
    table: dict[str, Any] = recipe("tiny", tmp_path)
    table["models"]["base"]["chat_template"] = str(template)
    table["tools"] = {
        "server": {"name": "mcp", "command": [sys.executable, str(SERVER), "stdio"], "allowed_tools": ["add"]}
    }
    table["agents"][0]["tools"] = ["server"]
    table["environment"] = {"name": "tests.marft.agents.test_processes:Busy"}
    table["rollout"]["workers"] = processes
    file = tmp_path / "recipe.toml"
    file.write_text(tomli_w.dumps(table))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "processes"),
    [("SIGKILL", 0), *([("SIGINT", 2), ("SIGINT", 0), ("SIGTERM", 0), ("SIGKILL", 2)] if NIGHT else [])],
)
def test_nothing_is_left_of_a_cancelled_run(how: str, processes: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "-m", "marft.cli.main", "train", str(write(tmp_path, processes))], cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log.open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    started: dict[int, str] = {}
    while time.monotonic() < deadline and process.poll() is None:
        started = descendants(process.pid)
        kinds = [sum(word in line for line in started.values()) for word in ("mcp_server.py", "time.sleep(600)")]
        if kinds[0] and kinds[1] == 4 and any("jail.py" in line for line in started.values()):
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"it did not get going: {started} {log.read_text()}")
    for _ in range(2 if how == "SIGINT" else 1):  # the first Ctrl-C would wait for the step's end
        process.send_signal(getattr(signal, how))
        time.sleep(0.5)
    assert process.wait(timeout=60) != 0, log.read_text()
    if (
        how == "SIGKILL" and not processes
    ):  # nobody can tidy up any more: what the environment itself started is its own affair
        started = {pid: line for pid, line in started.items() if "time.sleep(600)" not in line}
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(map(alive, started)):
        time.sleep(0.1)
    left = {pid: line for pid, line in started.items() if alive(pid)}
    assert not left, log.read_text()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
