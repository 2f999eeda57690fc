"""Measure what cheating programs earn from the judge of ``code``, and the time to judge an honest program.

    python benchmarks/code_cheats.py

Every program of ``tests/cheats.py`` wraps one trick around an honest function. The function is right for three of eight
hidden inputs, so a program may earn at most 3/8. The script then judges honest programs in sequence, with 1, 10 and 50
tests each. Writes results/code_cheats.json and results/code_cheats.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import machine

from marft.common import atomic
from marft_envs.code.execution import FunctionCall, Limits
from marft_envs.code.grading import ProblemJudge
from marft_envs.code.problems import Case, Problem

sys.path.append(str(Path(__file__).parents[1]))

from tests.cheats import BEFORE, DRESSED, FAIR, PLACES, PROBLEM, cheats

LIMITS = Limits(seconds=1, all_seconds=1.5, output_kb=16)
TESTS = (1, 10, 50)  # tests of an honest program
TIMES = 20  # repetitions per program
HONEST = "def f(x): return 7 * x + 1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    found = {"machine": machine.describe(), **cheated(), "milliseconds": {str(count): cost(count) for count in TESTS}}
    atomic.write_file(arguments.results / "code_cheats.json", json.dumps(found, indent=2) + "\n")
    atomic.write_file(arguments.results / "code_cheats.md", page(found))
    print(page(found))


def cheated() -> dict[str, Any]:
    """Return the number of programs by earned share, and the programs that earned too much."""
    bench, programs, began = ProblemJudge(PROBLEM, LIMITS, 0.0), list(cheats()), time.monotonic()
    with ThreadPoolExecutor() as pool:
        shares = list(pool.map(lambda cheat: bench.judge(cheat.program, []).pass_rate, programs))
    return {
        "programs": len(programs), "seconds": round(time.monotonic() - began, 1),
        "earned": {f"{share:.3f}": count for share, count in sorted(Counter(shares).items())},
        "too_much": [cheat.name for cheat, share in zip(programs, shares, strict=True) if share > FAIR],
    }  # fmt: skip


def cost(tests: int) -> float:
    """Return the median milliseconds to judge an honest program."""
    cases = tuple(Case(FunctionCall("f", (x,)), (7 * x + 1,)) for x in range(tests))
    bench, taken = ProblemJudge(Problem("", "f", cases=cases), LIMITS, 0.0), []
    for _ in range(TIMES):
        began = time.perf_counter()
        assert bench.judge(HONEST, []).pass_rate == 1.0
        taken.append(1000 * (time.perf_counter() - began))
    return round(median(taken), 1)


def page(found: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    earned = "\n".join(f"| {share} | {count} |" for share, count in found["earned"].items())
    costs = "\n".join(f"| {count} | {taken} |" for count, taken in found["milliseconds"].items())
    return f"""# Programs that cheat

`python benchmarks/code_cheats.py`: {found["programs"]} programs combine {len(BEFORE)} tricks, {len(PLACES)} places and
{len(DRESSED)} disguises. Each wraps a function that is right for three of eight hidden inputs, so {FAIR} is fair.
{len(found["too_much"])} programs earned more. Judging took {found["seconds"]} s in total.

| earned | programs |
| --- | --- |
{earned}

Honest programs, judged in sequence on this machine ({found["machine"]["cores"]} cores):

| tests | milliseconds, median |
| --- | --- |
{costs}
"""


if __name__ == "__main__":
    main()
