"""Measure how often 95 % intervals contain the true value, where it is known.

    python benchmarks/coverage.py               # ten seeds of 1,000 simulations each: minutes
    python benchmarks/coverage.py --seeds 1
    python benchmarks/coverage.py --first-seed 100      # unused seeds, as in results/coverage.md

Three families, from 5 to 200 tasks: means (`mean_interval`: rewards), differences on the same tasks (`paired`: `marft
compare`), and shares over several attempts at a task (`clustered`: `marft eval --attempts`). The width is relative to
Student's interval on the same data. Writes results/coverage.json and .md. Exits with status 1 if an interval covers
less than 93 % or more than 98 %, from the number of tasks in `HOLDS_FROM` on. It also does so if an interval is over
1.3 times as wide as Student's on normal data.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marft.evaluation.intervals import mean_interval, student_interval
from marft.evaluation.ratios import Ratio, clustered_interval, compare_ratios, linearize_difference, pass_at

TIMES = 1000
TASKS = (5, 10, 20, 50, 100, 200)
AT_LEAST, AT_MOST, AT_MOST_WIDTH = 0.93, 0.98, 1.3
ATTEMPTS = 8
MARK = r" \*"
ROOT = Path(__file__).parent
Array = npt.NDArray[np.float64]
Simulation = Callable[[np.random.Generator, int], tuple[Array, float]]  # N tasks → data, and the true value
Interval = tuple[float, float] | None


def accuracies(draw: np.random.Generator, tasks: int) -> tuple[Array, float]:
    """Draw tasks of different difficulty, where outcomes before and after correlate → [N, 4], and the true gain."""
    ease = draw.beta(2, 2, tasks)
    before, after = draw.random((2, tasks)) < np.stack([ease, ease + 0.3 * (1 - ease)])
    return np.stack([before, np.ones(tasks), after, np.ones(tasks)], -1).astype(float), 0.15


def error_rates(draw: np.random.Generator, tasks: int) -> tuple[Array, float]:
    """Draw failing calls. Their number and failure rate differ between tasks."""
    rate = draw.beta(2, 8, tasks)
    calls = 1 + draw.poisson(3, (2, tasks))
    failed = draw.binomial(calls, np.stack([rate, rate / 2]))
    return np.stack([failed[0], calls[0], failed[1], calls[1]], -1).astype(float), -0.1


def costs(spread: float) -> Simulation:
    """Return a simulation of tokens per episode, lognormal over tasks: some tasks take many times more than others."""

    def draw_costs(draw: np.random.Generator, tasks: int) -> tuple[Array, float]:
        size = np.exp(draw.normal(0, spread, tasks))
        before, after = size * np.exp(draw.normal(0, 0.3, (2, tasks)))
        parts = np.stack([before, np.ones(tasks), 1.5 * after, np.ones(tasks)], -1)
        return parts, 0.5 * float(np.exp((spread**2 + 0.3**2) / 2))

    return draw_costs


def tokens_a_call(draw: np.random.Generator, tasks: int) -> tuple[Array, float]:
    """Draw tokens and numbers of calls, for a ratio of two skewed sums."""
    size = np.exp(draw.normal(0, 0.8, tasks))
    before, after = size * np.exp(draw.normal(0, 0.3, (2, tasks)))
    calls = 1 + draw.poisson(2, (2, tasks))
    return np.stack([before, calls[0], 0.7 * after, calls[1]], -1), -0.1 * float(np.exp((0.8**2 + 0.3**2) / 2))


MEANS: dict[str, Simulation] = {
    "normal": lambda draw, n: (draw.normal(2, 1, n), 2.0),
    "0 or 1, half": lambda draw, n: (draw.binomial(1, 0.5, n).astype(float), 0.5),
    "0 to 1, most near 0 or 1": lambda draw, n: (draw.beta(0.5, 0.5, n), 0.5),
    "0 to 1, skewed": lambda draw, n: (draw.beta(0.5, 2, n), 0.2),
    "lognormal, spread 0.5": lambda draw, n: (np.exp(draw.normal(0, 0.5, n)), float(np.exp(0.125))),
    "exponential": lambda draw, n: (draw.exponential(1.0, n), 1.0),
    "lognormal, spread 1": lambda draw, n: (np.exp(draw.normal(0, 1, n)), float(np.exp(0.5))),
}
DIFFERENCES: dict[str, Simulation] = {
    "accuracy": accuracies, "tool_error_rate": error_rates, "tokens a call": tokens_a_call,
    "cost_tokens, spread 0.5": costs(0.5), "cost_tokens, spread 1": costs(1.0),
}  # fmt: skip
HOLDS_FROM = {
    "0 or 1, half": 20, "0 to 1, skewed": 10, "accuracy": 10, "tool_error_rate": 10, "exponential": 10,
    "lognormal, spread 1": 20, "cost_tokens, spread 1": 50,
}  # fmt: skip


def averages(draw: np.random.Generator, tasks: int) -> tuple[list[Ratio], float]:
    """Draw avg@8 of mostly easy or hard tasks."""
    solved = draw.binomial(ATTEMPTS, draw.beta(0.5, 0.5, tasks))
    return [Ratio(count / ATTEMPTS) for count in solved.tolist()], 0.5


def passes(draw: np.random.Generator, tasks: int) -> tuple[list[Ratio], float]:
    """Draw pass@4 from 8 attempts, at tasks with success rates of 0 to 40 %."""
    solved = draw.binomial(ATTEMPTS, draw.uniform(0, 0.4, tasks))
    truth = 1 - (1 - 0.6**5) / (5 * 0.4)  # 1 − E (1 − p)⁴
    return [Ratio(pass_at(4, ATTEMPTS, count)) for count in solved.tolist()], truth


def found(name: str, draw: np.random.Generator, tasks: int) -> tuple[Interval, float, Array]:
    """Return one simulated interval, the true value, and the data for Student's interval."""
    family, _, kind = name.partition(": ")
    if family == "mean":
        values, truth = MEANS[kind](draw, tasks)
        return mean_interval(values), truth, values
    if family == "difference":
        parts, truth = DIFFERENCES[kind](draw, tasks)
        sides = [{str(n): Ratio(*row) for n, row in enumerate(parts[:, of].tolist())} for of in ([0, 1], [2, 3])]
        compared = compare_ratios(*sides)
        return compared.interval if compared else None, truth, linearize_difference(parts)
    shares, truth = (averages if kind == "avg@8" else passes)(draw, tasks)
    share = clustered_interval(shares, ATTEMPTS)
    return share[1] if share else None, truth, np.array([ratio.numerator for ratio in shares])


def simulated(name: str, tasks: int, seed: int) -> tuple[float, float]:
    """Return coverage, and mean width relative to Student's. Simulations without an interval do not count."""
    draw, held, widths, plain = np.random.default_rng([seed, tasks]), [], [], []
    for _ in range(TIMES):
        interval, truth, values = found(name, draw, tasks)
        if interval is not None and np.ptp(values) > 0:
            low, high = student_interval(values)
            held.append(interval[0] <= truth <= interval[1])
            widths.append(interval[1] - interval[0])
            plain.append(high - low)
    return float(np.mean(held)), float(np.mean(widths) / np.mean(plain))


def names() -> Iterator[str]:
    yield from (f"mean: {kind}" for kind in MEANS)
    yield from (f"difference: {kind}" for kind in DIFFERENCES)
    yield from ("share: avg@8", "share: pass@4 of 8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    rows: list[dict[str, Any]] = []
    for name in names():
        for tasks in TASKS:
            cells = [simulated(name, tasks, seed) for seed in seeds]
            coverage, width = (float(np.mean(column)) for column in zip(*cells, strict=True))
            promised = tasks >= HOLDS_FROM.get(name.partition(": ")[2], 5)
            rows.append({"interval": name, "tasks": tasks, "coverage": coverage, "width": width, "promised": promised})
            print(f"{name}, {tasks} tasks: {coverage:.1%}, width {width:.2f}{'' if promised else ' *'}", flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "coverage.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (arguments.results / "coverage.md").write_text(table(rows, seeds), encoding="utf-8")
    sys.exit(any(map(broken, rows)))


def broken(row: dict[str, Any]) -> bool:
    """Return whether a row contradicts what the project claims."""
    too_wide = row["interval"] == "mean: normal" and row["width"] > AT_MOST_WIDTH
    return bool(too_wide or (row["promised"] and outside(row)))


def outside(row: dict[str, Any]) -> bool:
    """Return whether an interval covers less or more than it may."""
    return not AT_LEAST <= row["coverage"] <= AT_MOST


def table(rows: list[dict[str, Any]], seeds: range) -> str:
    """Return the results as Markdown."""
    lines = [
        f"Coverage of 95 % intervals, and their mean width relative to Student's interval, from {TIMES:,} simulations a"
        f" seed over seeds {seeds[0]} to {seeds[-1]} (`python benchmarks/coverage.py --first-seed {seeds[0]}`)."
        f" \\* marks coverage outside {AT_LEAST:.0%} to {AT_MOST:.0%}, or too few tasks for this kind of data. MARFT"
        " promises nothing there.",
        "",
        f"| interval | {' | '.join(f'{tasks} tasks' for tasks in TASKS)} |",
        f"| --- |{' --- |' * len(TASKS)}",
    ]
    for name in dict.fromkeys(row["interval"] for row in rows):
        cells = [
            f"{row['coverage']:.1%} ({row['width']:.2f}){MARK if outside(row) or not row['promised'] else ''}"
            for row in rows
            if row["interval"] == name
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
