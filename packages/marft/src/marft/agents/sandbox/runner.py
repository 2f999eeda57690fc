"""Runner for Python code in a jail: a separate process without network, files, environment or other processes."""

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
from typing import Annotated, Any, Literal

from pydantic import Field

from marft.agents.sandbox import group
from marft.agents.sandbox.call_filter import ARCHITECTURES, build_filter
from marft.common.errors import UserError
from marft.config.settings import Settings

Limit = Annotated[int, Field(ge=1, le=10**8)]
PROBE_PATH = Path(__file__).with_name("probe.py")
PROBE_SECONDS = 60.0
Outcome = Literal["finished", "failed", "timed_out", "killed", "too_much_output"]
JAIL_PATH = Path(__file__).with_name("jail.py")
CHUNK = 65536
END_SECONDS = 5.0  # time for a jail to end after SIGTERM
_running: set[subprocess.Popen[bytes]] = set()
MAX_ATTEMPTS = 3  # attempts at the first jail: a temporary shortage of resources is not missing isolation


class SandboxSettings(Settings):
    """Limits of one program run. A run above a limit ends, and its result reports the limit."""

    timeout_seconds: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=10.0, description="timeout in seconds of wall-clock time"
    )
    cpu_seconds: Limit = Field(default=10, description="CPU time of each process, in seconds")
    memory_mb: Limit = Field(
        default=512, description="memory of all processes and files together, and address space of each process, in MiB"
    )
    disk_mb: Limit = Field(default=64, description="size of all files together, in MiB")
    max_files: Limit = Field(default=4096, description="maximum files, including folders and links")
    max_open_files: Limit = Field(default=64, description="maximum open files of each process")
    max_processes: Limit = Field(default=16, description="maximum processes and threads together")
    output_kb: Limit = Field(default=256, description="maximum size of standard output, and of standard error, in KiB")
    isolation: Literal["required", "none"] = Field(
        default="required",
        description=(
            '"required": jail with namespaces; "none": only limits and the filter, for machines without namespaces'
        ),
    )


@functools.cache
def find_requirements() -> dict[str, Any]:
    """Return the interpreter's requirements.

    The keys are ``python``, and the real paths of ``libraries``, ``files`` and ``folders`` by name. In a virtual
    environment, this is the base interpreter, which has the standard library.

    Raises:
        UserError: the interpreter does not start under the jail's conditions.
    """
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    try:
        completed = subprocess.run(
            [python, "-I", "-S", PROBE_PATH], env={}, check=True, capture_output=True, timeout=PROBE_SECONDS
        )
        return dict(json.loads(completed.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserError(f"{python} does not say what it needs: {error}") from error


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run.

    ``finished`` code exited with status 0. ``failed`` code exited with another status. ``killed`` code was ended by
    a signal, usually because of a limit. Other outcomes mean that the run exceeded its time or output limit. Output
    is cut at its limit.
    """

    outcome: Outcome
    stdout: bytes  # standard output
    stderr: bytes  # standard error
    status: int
    seconds: float

    @property
    def output(self) -> str:
        """Text of standard output."""
        return self.stdout.decode(errors="replace")

    @property
    def errors(self) -> str:
        """Text of standard error."""
        return self.stderr.decode(errors="replace")


def run_python(
    code: str, settings: SandboxSettings | None = None, stdin: str = "", files: Mapping[str, bytes] | None = None
) -> RunResult:
    """Run a program and wait for it.

    Args:
        code: Python source.
        settings: limits; the defaults if None.
        stdin: text for standard input.
        files: contents of the working folder, by relative path.

    Raises:
        UserError: the settings require isolation, and the machine offers none.
    """
    settings = settings or SandboxSettings()
    require_isolation(settings)
    return _run(code, settings, stdin, files or {})


def require_isolation(settings: SandboxSettings) -> None:
    """Check the machine for isolation, if the settings require it.

    Raises:
        UserError: the settings require isolation, and the machine offers none.
    """
    if settings.isolation == "required" and (problem := isolation_problem()):
        raise UserError(
            f"code cannot be run safely here: {problem}. Allow unprivileged user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
            "user.max_user_namespaces > 0; in Docker --security-opt seccomp=unconfined), or accept the risk "
            "with isolation = 'none'"
        )


@functools.cache
def isolation_problem() -> str:
    """Return the reason why this machine cannot build a jail, or "" if it can."""
    if not sys.platform.startswith("linux"):
        return f"there are no namespaces on {sys.platform}"
    try:
        build_filter(os.uname().machine)
        find_requirements()
    except ValueError as error:
        return str(error)
    problem = ""
    for _ in range(MAX_ATTEMPTS):
        result = _run("print('here')", SandboxSettings(timeout_seconds=30.0), "", {})
        if result.output.strip() == "here":
            return ""
        lines = result.errors.strip().splitlines()
        problem = lines[-1] if lines else f"the jail did not answer: {result.outcome}, {result.status}"
    return problem


def terminate_all() -> None:
    """Kill running code, to release waiting callers."""
    for process in list(_running):
        process.terminate()


def _unused_name(name: str, used_names: Iterable[str]) -> str:
    """Return a free name, with leading underscores if needed."""
    while name in used_names:
        name = f"_{name}"
    return name


def _build_order(code: str, settings: SandboxSettings, stdin: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the order for the jail."""
    isolated, architecture = settings.isolation == "required", os.uname().machine
    python = find_requirements() if isolated else {"python": sys.executable}
    call_filter = build_filter(architecture) if isolated or architecture in ARCHITECTURES else b""
    mounted_names = {path.split("/")[1] for kind in ("files", "folders") for path in python.get(kind, ())}
    return {
        "code": code,
        "program": _unused_name("program.py", {file.partition("/")[0] for file in files}),
        "stdin": stdin,
        "given": {name: base64.b64encode(content).decode() for name, content in files.items()},
        "limits": settings.model_dump(),
        "needs": python,
        "folder": "/" + _unused_name("work", mounted_names),
        "filter": base64.b64encode(call_filter).decode(),
        "group": group.find_parent(),
        "temporary": tempfile.gettempdir(),
    }


def _run(code: str, settings: SandboxSettings, stdin: str, files: Mapping[str, bytes]) -> RunResult:
    invalid_paths = [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]
    assert not invalid_paths, f"{invalid_paths} would lie outside the working folder"
    start_time = time.monotonic()
    order = _build_order(code, settings, stdin, files)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(JAIL_PATH), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        close_fds=True,
        start_new_session=True,
    )
    _running.add(process)
    try:
        deadline = start_time + settings.timeout_seconds
        output, errors, cut = _communicate(process, json.dumps(order).encode(), settings, deadline)
    finally:
        _running.discard(process)
        _terminate(process)
        group.remove(group.group_path(order["group"], process.pid))
    status = process.returncode
    outcome: Outcome = cut or ("finished" if status == 0 else "killed" if status >= 128 or status < 0 else "failed")
    return RunResult(outcome, output, errors, status, time.monotonic() - start_time)


def _communicate(
    process: subprocess.Popen[bytes], order: bytes, settings: SandboxSettings, deadline: float
) -> tuple[bytes, bytes, Outcome | None]:
    """Send the order, then read until the program ends, exceeds its timeout or writes too much."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    limit = settings.output_kb * 1024
    received: dict[int, bytearray] = {}
    cut: Outcome | None = None
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
            received[pipe.fileno()] = bytearray()
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while len(selector.get_map()) and cut is None:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                cut = "timed_out"
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    order = _write_input(process, order)
                    if not order:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, CHUNK)
                received[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(received[key.fd]) > limit:
                    cut = "too_much_output"
    if cut is None:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            cut = "timed_out"
    output, errors = (bytes(received[pipe.fileno()][:limit]) for pipe in (process.stdout, process.stderr))
    return output, errors, cut


def _write_input(process: subprocess.Popen[bytes], order: bytes) -> bytes:
    """Write as much as the pipe accepts, and return the rest; empty if the reader is gone."""
    assert process.stdin
    try:
        return order[os.write(process.stdin.fileno(), order[:CHUNK]) :]
    except BlockingIOError:
        return order
    except BrokenPipeError:
        return b""


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the jail: the keeper does so on SIGTERM, and killing the keeper kills the rest."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe and not pipe.closed:
            pipe.close()
