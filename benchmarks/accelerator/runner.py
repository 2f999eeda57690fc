"""Run stages in processes of their own, each with a time limit, and keep what each has reported.

Needs the standard library alone: the machine may lack anything else.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

TAIL = 1500  # characters of a failed stage's output in the results


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage of the benchmark.

    Args:
        name: name of the stage.
        seconds: time limit.
        alone: True if it measures time, and runs while no other stage runs.
    """

    name: str
    seconds: float
    alone: bool = False


@dataclass(slots=True)
class Running:
    """Process of a stage."""

    stage: Stage
    process: subprocess.Popen[bytes]
    began: float
    deadline: float
    log: IO[bytes]
    read_at: float = 0.0  # time of the report that was read last

    def kill(self) -> None:
        """Kill the process and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(slots=True)
class Runner:
    """Runner of stages.

    Args:
        command: command of a stage, by its name and report.
        environment: environment of the stages.
        folder: folder of reports and logs.
        deadline: end of the time for all stages, as ``time.monotonic``.
        jobs: number of concurrent stages, of those that measure no time.
        on_change: called with the results whenever a stage has reported something, or has finished.
    """

    command: Callable[[str, Path], Sequence[str]]
    environment: Mapping[str, str]
    folder: Path
    deadline: float
    jobs: int
    on_change: Callable[[Mapping[str, Any]], object]
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)

    def run(self, stages: Sequence[Stage]) -> dict[str, dict[str, Any]]:
        """Run the stages in order, stages that are not alone side by side; return their results.

        An interrupted run kills its stages and keeps what they have reported.
        """
        waiting = list(stages)
        try:
            while waiting or self.running:
                while waiting and self._may_start(waiting[0]):
                    self._start(waiting.pop(0))
                time.sleep(0.05)
                for running in list(self.running):
                    self._check(running)
        except BaseException:
            for running in list(self.running):
                running.kill()
                self._finish(running, "interrupted")
            raise
        return self.results

    def _may_start(self, stage: Stage) -> bool:
        if stage.alone:
            return not self.running
        return len(self.running) < self.jobs and not any(running.stage.alone for running in self.running)

    def _start(self, stage: Stage) -> None:
        now = time.monotonic()
        seconds = min(stage.seconds, self.deadline - now)
        if seconds < 1:
            self._save(stage, {"status": "not run: no time left"})
            return
        log = (self.folder / f"{stage.name}.log").open("wb")
        process = subprocess.Popen(
            self.command(stage.name, self.folder / f"{stage.name}.json"), env=dict(self.environment), stdout=log,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.running.append(Running(stage, process, now, now + seconds, log))

    def _check(self, running: Running) -> None:
        code, now = running.process.poll(), time.monotonic()
        if code is not None:
            self._finish(running, "done" if code == 0 else f"failed with status {code}")
        elif now > running.deadline:
            running.kill()
            self._finish(running, f"stopped after {now - running.began:.0f} s")
        elif report := self._read(running):
            self.results[running.stage.name] = {"status": "running", **report}
            self.on_change(self.results)

    def _read(self, running: Running) -> dict[str, Any]:
        """Return a stage's report if it is new."""
        path = self.folder / f"{running.stage.name}.json"
        with contextlib.suppress(OSError, ValueError):
            if (changed := path.stat().st_mtime) > running.read_at:
                running.read_at = changed
                return dict(json.loads(path.read_text()))
        return {}

    def _finish(self, running: Running, status: str) -> None:
        running.log.close()
        self.running.remove(running)
        result: dict[str, Any] = {"status": status, "wall_seconds": round(time.monotonic() - running.began, 1),
                                  "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}  # fmt: skip
        running.read_at = 0.0
        result |= self._read(running)
        if status != "done":
            result["output"] = Path(running.log.name).read_text(errors="replace")[-TAIL:]
        self._save(running.stage, result)

    def _save(self, stage: Stage, result: dict[str, Any]) -> None:
        self.results[stage.name] = result
        print(f"{stage.name}: {result['status']} ({result.get('wall_seconds', 0):.0f} s)", flush=True)
        self.on_change(self.results)
