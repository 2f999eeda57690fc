"""Work done in forked children of a warm process: each with limits, folders and a process group of its own."""

from __future__ import annotations

import gc
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
MEMORY = 6 << 30  # bytes that a child may take beyond what it was born with
PULSE = "\0"
OUTPUT = "output.txt"


@dataclass
class Child(Generic[T]):
    task: T
    process: int
    pipe: int
    folder: str
    heard: float  # when it last gave a sign of life
    began: float
    said: str = ""


@dataclass(frozen=True)
class Ending(Generic[T]):
    """How a child ended. ``said`` is what its work returned, None where it died or was ended; ``printed`` the end of
    what went to its output."""

    task: T
    said: str | None
    printed: str
    hung: bool
    seconds: float


def in_forks(
    tasks: Iterable[T], work: Callable[[T, Callable[[], None]], str], jobs: int, patience: float
) -> Iterator[Ending[T]]:
    """``work(task, pulse)`` of every task in a child, ``jobs`` at a time; endings as they come.

    Args:
        patience: seconds without a pulse after which a child is ended.
    """
    waiting = iter(tasks)
    running: dict[int, Child[T]] = {}
    gc.collect()
    gc.freeze()  # what the children share stays shared
    try:
        while True:
            while len(running) < jobs:
                try:
                    child = _start(next(waiting), work)
                except StopIteration:
                    break
                running[child.pipe] = child
            if not running:
                return
            ready, _, _ = select.select(list(running), [], [], 0.5)
            for pipe in ready:
                child = running[pipe]
                piece = os.read(pipe, 1 << 16).decode()
                child.said, child.heard = child.said + piece.replace(PULSE, ""), time.monotonic()
                if not piece:
                    yield _end(running.pop(pipe), hung=False)
            for child in [c for c in running.values() if time.monotonic() - c.heard > patience]:
                yield _end(running.pop(child.pipe), hung=True)
    finally:
        for child in running.values():
            _end(child, hung=True)


def _start(task: T, work: Callable[[T, Callable[[], None]], str]) -> Child[T]:
    sys.stdout.flush()
    sys.stderr.flush()
    folder = tempfile.mkdtemp(prefix="mutant-")
    ours, theirs = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(ours)
            os.setsid()
            _settle(folder)
            said = work(task, lambda: _write(theirs, PULSE))
            _write(theirs, said)
        finally:
            os._exit(0)  # nothing of the parent's is flushed or ended twice
    os.close(theirs)
    now = time.monotonic()
    return Child(task, process, ours, folder, now, now)


def _settle(folder: str) -> None:
    """A child whose output and temporary files are in one folder, and whose memory has a bound."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(Path(folder) / OUTPUT, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = folder
    data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = data_pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write(pipe: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(pipe, data) :]


def limit_cpu(seconds: float) -> None:
    """From here on this process may use so much processor time, before it is ended."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _end(child: Child[T], *, hung: bool) -> Ending[T]:
    """End a child and whatever it started, and remove its files."""
    if hung:
        os.kill(child.process, signal.SIGKILL)
    _, status = os.waitpid(child.process, 0)
    with suppress(ProcessLookupError):
        os.killpg(child.process, signal.SIGKILL)
    os.close(child.pipe)
    printed = (Path(child.folder) / OUTPUT).read_text(encoding="utf-8", errors="replace")[-4000:]
    shutil.rmtree(child.folder, ignore_errors=True)
    late = hung or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF)
    return Ending(child.task, child.said or None, printed, late, time.monotonic() - child.began)
