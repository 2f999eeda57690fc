"""How often intervals of 95 % hold the truth, where it is known.

    python benchmarks/coverage.py               # ten seeds of 1,000 simulations each: minutes
    python benchmarks/coverage.py --seeds 1
    python benchmarks/coverage.py --first-seed 100      # seeds that nothing was chosen on: what results/coverage.md has

Differences on the same tasks (`marft compare`) of three kinds of metrics, and shares over several attempts at a task
(`marft eval --attempts`), at 50 and at 200 tasks. Writes results/coverage.json and .md; ends with 1 where any kind
holds less than 93 % of the truths over all seeds. A seed by itself is known to 0.7 points.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marft.evaluation.bootstrap import RESAMPLES, interval_of, resamples
from marft.evaluation.shares import clustered
from marft.evaluation.trajectories.attempts import pass_at
from marft.evaluation.trajectories.ratio import Ratio

TIMES = 1000
TASKS = (50, 200)
AT_LEAST = 0.93
ATTEMPTS = 8
ROOT = Path(__file__).parent
Parts = npt.NDArray[np.float64]  # [N, M, 4]: amount and out of, before and after, of N tasks in M simulations
Simulation = Callable[[np.random.Generator, int], tuple[Parts, float]]


def accuracies(draw: np.random.Generator, tasks: int) -> tuple[Parts, float]:
    """Tasks of different difficulty: what is solved before is often solved after → parts, and the true gain."""
    ease = draw.beta(2, 2, (tasks, TIMES))
    before, after = draw.random((2, tasks, TIMES)) < np.stack([ease, ease + 0.3 * (1 - ease)])
    ones = np.ones((tasks, TIMES))
    return np.stack([before, ones, after, ones], -1).astype(float), 0.15


def error_rates(draw: np.random.Generator, tasks: int) -> tuple[Parts, float]:
    """Calls that fail, of a number of calls that differs between tasks, as does how often they fail."""
    rate = draw.beta(2, 8, (tasks, TIMES))
    calls = 1 + draw.poisson(3, (2, tasks, TIMES))
    failed = draw.binomial(calls, np.stack([rate, rate / 2]))
    return np.stack([failed[0], calls[0], failed[1], calls[1]], -1).astype(float), -0.1


def costs(draw: np.random.Generator, tasks: int) -> tuple[Parts, float]:
    """Tokens an episode: some tasks take many times more than others."""
    size = np.exp(draw.normal(0, 0.5, (tasks, TIMES)))
    before, after = size * np.exp(draw.normal(0, 0.3, (2, tasks, TIMES)))
    ones = np.ones((tasks, TIMES))
    return np.stack([before, ones, 1.5 * after, ones], -1), 0.5 * float(np.exp((0.5**2 + 0.3**2) / 2))


def differences(simulate: Simulation, tasks: int, seed: int) -> float:
    """The share of intervals of a difference that hold the truth."""
    parts, truth = simulate(np.random.default_rng(seed), tasks)
    found = interval_of(parts, resamples(tasks, seed + 1, RESAMPLES))
    return sum(1 for interval in found if interval and interval[0] <= truth <= interval[1]) / TIMES


def averages(tasks: int, seed: int) -> float:
    """The share of intervals of avg@8 that hold the truth, where most tasks are easy or hard."""
    draw = np.random.default_rng(seed)
    solved = draw.binomial(ATTEMPTS, draw.beta(0.5, 0.5, (TIMES, tasks)))
    return _held([[Ratio(c / ATTEMPTS) for c in row] for row in solved.tolist()], 0.5)


def passes(tasks: int, seed: int) -> float:
    """The same of pass@4 of 8 attempts, at tasks that are solved in from none to 40 % of them."""
    draw = np.random.default_rng(seed)
    ease = draw.uniform(0, 0.4, (TIMES, tasks))
    solved = draw.binomial(ATTEMPTS, ease)
    truth = 1 - (1 - 0.6**5) / (5 * 0.4)  # 1 − E (1 − p)⁴
    return _held([[Ratio(pass_at(4, ATTEMPTS, c)) for c in row] for row in solved.tolist()], truth)


def _held(simulated: list[list[Ratio]], truth: float) -> float:
    found = [clustered(shares, ATTEMPTS) for shares in simulated]
    return sum(1 for each in found if each and each[1][0] <= truth <= each[1][1]) / TIMES


CASES: dict[str, Callable[[int, int], float]] = {
    "accuracy, change": lambda tasks, seed: differences(accuracies, tasks, seed),
    "tool_error_rate, change": lambda tasks, seed: differences(error_rates, tasks, seed),
    "cost_tokens, change": lambda tasks, seed: differences(costs, tasks, seed),
    "avg@8": averages,
    "pass@4 of 8": passes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    rows: list[dict[str, Any]] = []
    for name, simulate in CASES.items():
        for tasks in TASKS:
            shares = [simulate(tasks, 1000 * seed) for seed in seeds]
            rows.append({"interval": name, "tasks": tasks, "shares": shares})
            print(f"{name}, {tasks} tasks: {np.mean(shares):.1%}, lowest {min(shares):.1%}", flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "coverage.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (arguments.results / "coverage.md").write_text(table(rows, seeds), encoding="utf-8")
    sys.exit(any(np.mean(row["shares"]) < AT_LEAST for row in rows))


def table(rows: list[dict[str, Any]], seeds: range) -> str:
    """The results as Markdown."""
    lines = [
        f"Intervals of 95 % that hold the truth, of {TIMES:,} simulations a seed, over seeds {seeds[0]} to {seeds[-1]}"
        f" (`python benchmarks/coverage.py --first-seed {seeds[0]}`):",
        "",
        "| interval | tasks | mean | lowest seed | highest seed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        shares = np.array(row["shares"])
        lines.append(
            f"| {row['interval']} | {row['tasks']} | {shares.mean():.1%} | {shares.min():.1%} | {shares.max():.1%} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
