"""Measure how long the outputs of programs block the training process.

    python benchmarks/code_texts.py

A thread ticks every half millisecond; the longest time between two ticks is the longest block. The script reads texts
of nested lists in this process (``plain_values.decode``), and as the judge of ``code`` does
(``comparison.OutputReader``). It then compares 20 ordinary values. Writes results/code_texts.json and
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
ALL_SECONDS = 20.0  # default processor time of a program
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
    """Return the median milliseconds to compare correct values."""
    taken = []
    for _ in range(1 + TIMES):  # the first run starts the process
        began = time.perf_counter()
        assert all(
            right for _, right in OutputReader(ALL_SECONDS).compare_outputs([CASE] * VALUES, [said("22")] * VALUES, 0.0)
        )
        taken.append(1000 * (time.perf_counter() - began))
    return round(median(taken[1:]), 1)


def text(kilobytes: int) -> dict[str, Any]:
    """Measure the cost of reading lists of this size in this process and in the judge's."""
    lists = f"[{'[],' * (kilobytes * 1024 // 3)}[]]"
    return {
        "kilobytes": kilobytes,
        "here": costs(lambda: decode(lists)),
        "elsewhere": costs(lambda: OutputReader(ALL_SECONDS).compare_outputs([CASE], [said(lists)], 0.0)),
    }


def said(value: str) -> Outcome:
    return Outcome("returned", value)


def costs(work: Callable[[], object]) -> dict[str, float]:
    """Return wall-clock seconds, this thread's processor seconds, and the longest block of another thread."""
    with ticking() as holds:
        began, used = time.perf_counter(), time.thread_time()
        work()
        seconds, used = time.perf_counter() - began, time.thread_time() - used
    return {"seconds": round(seconds, 3), "cpu_seconds": round(used, 3), "longest_hold_ms": round(1000 * max(holds), 1)}


@contextmanager
def ticking() -> Iterator[list[float]]:
    """Run a ticking thread, and yield the seconds between its ticks."""
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
    """Return the results as Markdown."""
    rows = "\n".join(
        f"| {row['kilobytes']:,} KiB | {where} | {row[key]['seconds']} | {row[key]['cpu_seconds']} | "
        f"{row[key]['longest_hold_ms']} |"
        for row in found["texts"]
        for key, where in (("here", "in the process that trains"), ("elsewhere", "by the judge"))
    )
    return f"""# Texts that programs return

`python benchmarks/code_texts.py`, {found["machine"]["cores"]} cores: a program returns a list of empty lists. The
training process decodes its text, or the judge's own process does. The last column is the longest time for which
another thread of the training process was blocked.

| text | read | seconds | processor time of the process that trains, s | longest hold, ms |
| --- | --- | --- | --- | --- |
{rows}

The judge compares {VALUES} ordinary values in {found["ordinary_ms"]} ms (median of {TIMES}).
"""


if __name__ == "__main__":
    main()
