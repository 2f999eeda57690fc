"""Run Python code in a jail: a separate process without network, files, environment or neighbours."""

from __future__ import annotations

import base64
import functools
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from marft.agents.sandbox import group
from marft.agents.sandbox.calls import MACHINES
from marft.agents.sandbox.filter import program
from marft.agents.sandbox.interpreter import needs
from marft.agents.sandbox.settings import SandboxSettings

Outcome = Literal["finished", "failed", "timed_out", "killed", "too_much_output"]
JAIL = Path(__file__).with_name("jail.py")
CHUNK = 65536
END_SECONDS = 5.0  # for a jail that is told to end
_live: set[subprocess.Popen[bytes]] = set()
TRIES = 3  # to build a first jail: a machine that is out of something for a moment is not one without isolation


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of running code.

    ``failed`` code ended with an error of its own; ``killed`` code was ended by a signal (a limit, mostly); the others
    ran past the clock or wrote too much. Output is cut to its limit.
    """

    outcome: Outcome
    written: bytes  # to standard output
    complained: bytes  # to standard error
    status: int
    seconds: float

    @property
    def output(self) -> str:
        """The text of standard output."""
        return self.written.decode(errors="replace")

    @property
    def errors(self) -> str:
        """The text of standard error."""
        return self.complained.decode(errors="replace")


def run_python(
    code: str, settings: SandboxSettings | None = None, stdin: str = "", files: Mapping[str, bytes] | None = None
) -> Ran:
    """Run a program and wait for it.

    Args:
        files: what lies in the working folder, by relative path.

    Raises:
        ValueError: the machine offers no isolation, and the settings require it.
    """
    settings = settings or SandboxSettings()
    require_isolation(settings)
    return _run(code, settings, stdin, files or {})


def require_isolation(settings: SandboxSettings) -> None:
    """Refuse where code could not be run as the settings ask.

    Raises:
        ValueError: the machine offers no isolation, and the settings require it.
    """
    if settings.isolation == "required" and (problem := isolation_problem()):
        raise ValueError(
            f"code cannot be run safely here: {problem}. Allow unprivileged user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
            "user.max_user_namespaces > 0; in Docker --security-opt seccomp=unconfined), or accept the risk "
            "with isolation = 'none'"
        )


@functools.cache
def isolation_problem() -> str:
    """Why no jail can be built on this machine; empty when one can."""
    if not sys.platform.startswith("linux"):
        return f"there are no namespaces on {sys.platform}"
    try:
        program(os.uname().machine)
        needs()
    except ValueError as error:
        return str(error)
    problem = ""
    for _ in range(TRIES):
        ran = _run("print('here')", SandboxSettings(seconds=30.0), "", {})
        if ran.output.strip() == "here":
            return ""
        problem = (ran.errors.strip().splitlines() or [f"the jail did not answer: {ran.outcome}, {ran.status}"])[-1]
    return problem


def end_all() -> None:
    """Kill all code that runs now, so that whoever waits for it waits no more."""
    for process in list(_live):
        process.terminate()


def _free_name(name: str, taken: Iterable[str]) -> str:
    """The name, with underscores before it as long as it is taken."""
    while name in taken:
        name = f"_{name}"
    return name


def _order(code: str, settings: SandboxSettings, stdin: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What the jail is told."""
    isolated, machine = settings.isolation == "required", os.uname().machine
    python = needs() if isolated else {"python": sys.executable}
    shown = {path.split("/")[1] for kind in ("files", "folders") for path in python.get(kind, ())}
    return {
        "code": code,
        "program": _free_name("program.py", {file.partition("/")[0] for file in files}),
        "stdin": stdin,
        "given": {name: base64.b64encode(content).decode() for name, content in files.items()},
        "limits": settings.model_dump(),
        "needs": python,
        "folder": "/" + _free_name("work", shown),
        "filter": base64.b64encode(program(machine)).decode() if isolated or machine in MACHINES else "",
        "group": group.find(),
        "temporary": tempfile.gettempdir(),
    }


def _run(code: str, settings: SandboxSettings, stdin: str, files: Mapping[str, bytes]) -> Ran:
    outside = [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]
    assert not outside, f"{outside} would lie outside the working folder"
    began = time.monotonic()
    order = _order(code, settings, stdin, files)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(JAIL), str(os.getpid())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={}, cwd="/", close_fds=True, start_new_session=True,
    )  # fmt: skip
    _live.add(process)
    try:
        output, errors, cut = _talk(process, json.dumps(order).encode(), settings, began + settings.seconds)
    finally:
        _live.discard(process)
        _end(process)
        group.remove(group.path_of(order["group"], process.pid))
    status = process.returncode
    outcome: Outcome = cut or ("finished" if status == 0 else "killed" if status >= 128 or status < 0 else "failed")
    return Ran(outcome, output, errors, status, time.monotonic() - began)


def _talk(
    process: subprocess.Popen[bytes], order: bytes, settings: SandboxSettings, deadline: float
) -> tuple[bytes, bytes, Outcome | None]:
    """Hand over the order, and read until the program ends, runs out of time or says too much."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    limit = settings.output_kb * 1024
    heard: dict[int, bytearray] = {}
    cut: Outcome | None = None
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
            heard[pipe.fileno()] = bytearray()
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while len(selector.get_map()) and cut is None:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                cut = "timed_out"
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    order = _feed(process, order)
                    if not order:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, CHUNK)
                heard[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(heard[key.fd]) > limit:
                    cut = "too_much_output"
    if cut is None:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            cut = "timed_out"
    output, errors = (bytes(heard[pipe.fileno()][:limit]) for pipe in (process.stdout, process.stderr))
    return output, errors, cut


def _feed(process: subprocess.Popen[bytes], order: bytes) -> bytes:
    """Write what the pipe takes → what is left; nothing when nobody reads any more."""
    assert process.stdin
    try:
        return order[os.write(process.stdin.fileno(), order[:CHUNK]) :]
    except BlockingIOError:
        return order
    except BrokenPipeError:
        return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End whatever of the jail still lives: its keeper does, and all die with a keeper that does not."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe and not pipe.closed:
            pipe.close()
