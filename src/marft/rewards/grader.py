"""Grading in processes of its own: an answer that hangs, crashes or eats memory loses only its own grade."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

MEMORY_BYTES = 4 * 2**30
START_SECONDS = 60.0  # for a new process to import sympy


class GradingError(Exception):
    """An answer could not be graded. It is not wrong: it leaves the batch and is counted."""


class Grader:
    """A pool of grading processes, started as they are needed and replaced when they fail.

    Args:
        timeout: seconds for one answer.
        processes: how many answers are graded at once.
    """

    def __init__(self, timeout: float, processes: int | None = None) -> None:
        self.timeout = timeout
        count = processes or os.cpu_count() or 1
        self._free: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)

    def equal(self, gold: str, written: str, tolerances: Sequence[float] = (), question: str = "") -> bool:
        """Whether ``written`` states ``gold``; blocks until a process is free. Safe to call from many threads.

        Args:
            tolerances: how far numbers may be from the gold ones.
            question: what was asked: whether a percentage or a point is.

        Raises:
            GradingError: it took too long, or the process died of it.
        """
        process = self._free.get()
        try:
            process = process or _Process()
            asked = {"gold": gold, "written": written, "tolerances": [*tolerances], "question": question}
            return process.ask(asked, self.timeout)
        except GradingError:
            if process is not None:
                process.kill()
            process = None
            raise
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End the processes that are not at work."""
        for _ in range(self._free.qsize()):
            process = self._free.get()
            if process is not None:
                process.kill()
            self._free.put(None)


class _Process:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "marft.rewards.grader"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, bufsize=1, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout
        self._read(START_SECONDS, "did not start")

    def ask(self, question: Mapping[str, object], timeout: float) -> bool:
        try:
            self._in.write(json.dumps(question) + "\n")
            self._in.flush()
        except OSError as error:
            raise GradingError("the grading process is gone") from error
        answer = json.loads(self._read(timeout, f"took over {timeout:g} s"))
        if "error" in answer:
            raise GradingError(f"math-verify failed: {answer['error']}")
        return bool(answer["equal"])

    def _read(self, timeout: float, complaint: str) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise GradingError(f"grading {complaint}")
        line = self._out.readline()
        if not line:
            raise GradingError("the grading process died of this answer")
        return line

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):  # flushing into a dead process
                pipe.close()


def _serve() -> None:
    """One JSON question a line on stdin, one JSON answer a line on stdout; ends when stdin does."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _die_with_parent()
    from marft.rewards.math_answers import equal

    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer: dict[str, object] = {"equal": equal(**question)}
        except Exception as error:  # noqa: BLE001  whatever sympy raises on what a model wrote
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), flush=True)  # noqa: T201


def _die_with_parent() -> None:
    """End when the run does, however it ended, even in the middle of an answer."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _serve()
