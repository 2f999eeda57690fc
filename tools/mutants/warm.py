"""Running tests in a warm process: what is slow to import is imported once, and every mutant meets its tests in a fork.

Mutants of functions are planted in a process that has collected the tests already; mutants of what runs when a module
is imported, in one that has imported nothing of the project yet.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from forks import Ending, in_forks, limit_cpu
from mutation import Mutant
from planting import Functions, come_first, plant_on_import

OPTIONS = ["-q", "-s", "--tb=native", "-p", "no:cacheprovider", "-p", "no:terminalreporter", "-W", "ignore"]
SLOWER = 5.0  # how many times as much processor time a test may take as without a mutant, beside what is spare
NOTHING_NEW = 10.0  # seconds of processor time: loading a model for the first time takes a few, traced
ELSEWHERE = "elsewhere"
Pulse = Callable[[], None]


@dataclass
class Seen:
    """What a test was without any mutant: its seconds, and the lines that it ran."""

    seconds: float
    lines: dict[str, list[int]] = field(default_factory=dict)  # by file


class Runner:
    """A pytest plugin that runs chosen tests in a chosen way, in place of pytest's own loop."""

    def __init__(self, loop: Callable[[dict[str, pytest.Item]], None]) -> None:
        self.loop, self.failed, self.why = loop, "", ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        come_first()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        self.loop({item.nodeid: item for item in session.items})
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed, self.why = report.nodeid, report.longreprtext

    def run(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        """Whether a test passes."""
        self.failed = ""
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self.failed


def session(options: Sequence[str], tests: Sequence[str], plugin: Runner) -> None:
    """One pytest session over some tests or files.

    Raises:
        SystemExit: they cannot be collected.
    """
    code = pytest.main([*OPTIONS, *options, *tests], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest: {code!r} for {' '.join(tests)}")


def look(
    options: Sequence[str], parts: Sequence[Sequence[str]], files: Mapping[str, str], jobs: int, patience: float
) -> Iterator[tuple[Sequence[str], dict[str, Seen]]]:
    """Run tests without a mutant, part by part → what each takes, and which lines of some files it runs.

    Args:
        files: what those are called, by their whole paths.

    Raises:
        SystemExit: a test fails, so that nothing could be said of mutants.
    """

    def work(part: Sequence[str], pulse: Pulse) -> str:
        seen: dict[str, Seen] = {}
        wrong: dict[str, str] = {}

        def loop(items: dict[str, pytest.Item]) -> None:
            traces = Traces(files)
            ordered = list(items.values())
            for item, following in zip(ordered, [*ordered, None][1:], strict=True):
                pulse()
                began = time.process_time()
                with traces:
                    if not plugin.run(item, following):
                        wrong[item.nodeid] = plugin.why
                seen[item.nodeid] = Seen(time.process_time() - began, traces.lines())

        plugin = Runner(loop)
        session(options, part, plugin)
        return json.dumps({"wrong": wrong, "seen": {name: vars(one) for name, one in seen.items()}})

    for ending in in_forks(parts, work, jobs, patience):
        if ending.said is None:
            raise SystemExit(f"{ending.printed}\nthe tests do not come to an end without a mutant")
        found = json.loads(ending.said)
        if found["wrong"]:
            whys = "\n".join(found["wrong"].values())
            raise SystemExit(f"{whys}\nthese tests fail without any mutant: {', '.join(found['wrong'])}")
        yield ending.task, {name: Seen(**one) for name, one in found["seen"].items()}


class Traces:
    """Which lines of some files are run while it is entered, on any thread started meanwhile. It stops looking where
    nothing new is run for a while: the two-hundredth example of a test runs what the others have.

    Args:
        files: what each is called, by its whole path.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self.ran: set[tuple[str, int]] = set()
        self._until = 0.0

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename in self.files:
            here = frame.f_code.co_filename, frame.f_lineno
            if here not in self.ran:
                self.ran.add(here)
                self._until = time.process_time() + NOTHING_NEW
            return self._trace
        if event == "call" and time.process_time() > self._until:
            sys.settrace(None)
        return None

    def __enter__(self) -> None:
        self.ran = set()
        self._until = time.process_time() + NOTHING_NEW
        if self.files:
            threading.settrace(self._trace)
            sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def lines(self) -> dict[str, list[int]]:
        """The lines by file."""
        return {self.files[file]: sorted(line for name, line in self.ran if name == file) for file, _ in self.ran}


Order = Callable[[Mutant], Sequence[str]]  # ids of the tests that a mutant meets, the likeliest to fail first


@dataclass(frozen=True)
class Limits:
    """What a test may take that meets a mutant, so that one that never ends is found out."""

    seconds: dict[str, float]  # of processor time, by test, without a mutant
    spare: float  # seconds of processor time on top of several times that
    patience: float  # seconds on the wall


def _meet(plugin: Runner, items: Sequence[pytest.Item], limits: Limits, pulse: Pulse) -> str:
    """Run tests until one fails → its id, or nothing."""
    for item, following in zip(items, [*items, None][1:], strict=True):
        pulse()
        limit_cpu(limits.spare + SLOWER * limits.seconds.get(item.nodeid, 0.0))
        if not plugin.run(item, following):
            return plugin.failed
    return ""


def meet_in_place(
    options: Sequence[str], mutants: Sequence[Mutant], order: Order, limits: Limits, tests: Sequence[str], jobs: int,
    on_ending: Callable[[Ending[Mutant]], None],
) -> None:  # fmt: skip
    """Plant each mutant in functions that are there already, in a session that has collected ``tests``. Those that
    cannot be planted so have no ending."""

    def loop(items: dict[str, pytest.Item]) -> None:
        functions = Functions(sorted({str(mutant.source.path) for mutant in mutants}))

        def work(mutant: Mutant, pulse: Pulse) -> str:
            if not functions.plant(mutant):
                return ELSEWHERE
            chosen = [items[name] for name in order(mutant) if name in items]
            return json.dumps({"by": _meet(plugin, chosen, limits, pulse)})

        for ending in in_forks(mutants, work, jobs, limits.patience):
            if ending.said != ELSEWHERE:
                on_ending(ending)

    plugin = Runner(loop)
    session(options, tests, plugin)


def meet_on_import(
    options: Sequence[str], mutants: Sequence[Mutant], order: Order, limits: Limits, jobs: int
) -> Iterator[Ending[Mutant]]:
    """Plant each mutant where its module is imported, in a fork that has imported nothing of the project."""

    def work(mutant: Mutant, pulse: Pulse) -> str:
        plant_on_import(mutant)
        names = list(order(mutant))
        by = [""]

        def loop(items: dict[str, pytest.Item]) -> None:
            by[0] = _meet(plugin, [items[name] for name in names if name in items], limits, pulse)

        plugin = Runner(loop)
        session(options, names, plugin)
        return json.dumps({"by": by[0]})

    yield from in_forks(mutants, work, jobs, limits.patience)


def warm_up(root: Path, modules: Sequence[str], environment: dict[str, str]) -> None:
    """Import what is slow, from a fresh process."""
    os.environ.update(environment)
    os.chdir(root)
    for module in modules:
        __import__(module)
