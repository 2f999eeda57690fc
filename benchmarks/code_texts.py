"""How long what a program returns keeps the process that trains from its work.

    python benchmarks/code_texts.py

A thread ticks every half millisecond; the longest time between two ticks is how long it was not let go on. Texts of
nested lists are read in this process (``plain.decode``) and as the judge of ``code`` has them read
(``comparing.OutputReader``). Then 20 ordinary values are compared. Writes results/code_texts.json and
results/code_texts.md.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import machine

from marft.common import atomic
from marft_envs.code.comparison import OutputReader
from marft_envs.code.execution import FunctionCall, Outcome
from marft_envs.code.plain_values import decode
from marft_envs.code.problems import Case

KILOBYTES = (256, 1024, 16384)
ALL_SECONDS = 20.0  # of processor time that a program has by default
VALUES, TIMES = 20, 50
CASE = Case(FunctionCall("f", (3,)), (22,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    found = {"machine": machine.describe(), "ordinary_ms": ordinary(), "texts": [text(size) for size in KILOBYTES]}
    atomic.write_file(arguments.results / "code_texts.json", json.dumps(found, indent=2) + "\n")
    atomic.write_file(arguments.results / "code_texts.md", page(found))
    print(page(found))


def ordinary() -> float:
    """Median milliseconds of comparing values that are right."""
    taken = []
    for _ in range(1 + TIMES):  # the first starts the process
        began = time.perf_counter()
        assert all(
            right for _, right in OutputReader(ALL_SECONDS).compare_outputs([CASE] * VALUES, [said("22")] * VALUES, 0.0)
        )
        taken.append(1000 * (time.perf_counter() - began))
    return round(median(taken[1:]), 1)


def text(kilobytes: int) -> dict[str, Any]:
    """What it costs this process to read lists here, and to have them read."""
    lists = f"[{'[],' * (kilobytes * 1024 // 3)}[]]"
    return {
        "kilobytes": kilobytes,
        "here": costs(lambda: decode(lists)),
        "elsewhere": costs(lambda: OutputReader(ALL_SECONDS).compare_outputs([CASE], [said(lists)], 0.0)),
    }


def said(value: str) -> Outcome:
    return Outcome("returned", value)


def costs(work: Callable[[], object]) -> dict[str, float]:
    """Seconds on the clock and of processor time of this thread, and the longest that another thread had to wait."""
    with ticking() as holds:
        began, used = time.perf_counter(), time.thread_time()
        work()
        seconds, used = time.perf_counter() - began, time.thread_time() - used
    return {"seconds": round(seconds, 3), "cpu_seconds": round(used, 3), "longest_hold_ms": round(1000 * max(holds), 1)}


@contextmanager
def ticking() -> Iterator[list[float]]:
    """Seconds between the ticks of another thread."""
    holds, ends = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not ends.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            holds.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.05)
    holds[:] = [0.0]
    yield holds
    ends.set()
    thread.join()


def page(found: dict[str, Any]) -> str:
    """The results as a page."""
    rows = "\n".join(
        f"| {row['kilobytes']:,} KiB | {where} | {row[key]['seconds']} | {row[key]['cpu_seconds']} | "
        f"{row[key]['longest_hold_ms']} |"
        for row in found["texts"]
        for key, where in (("here", "in the process that trains"), ("elsewhere", "by the judge"))
    )
    return f"""# Texts that programs return

`python benchmarks/code_texts.py`, {found["machine"]["cores"]} cores: a program returns a list of empty lists; its text
is decoded in the process that trains, or in the judge's own. The last column is the longest time for which another
thread of the process that trains could not go on.

| text | read | seconds | processor time of the process that trains, s | longest hold, ms |
| --- | --- | --- | --- | --- |
{rows}

The judge compares {VALUES} ordinary values in {found["ordinary_ms"]} ms (median of {TIMES}).
"""


if __name__ == "__main__":
    main()
