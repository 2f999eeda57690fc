"""Does it learn, every time? Dual and single teams, action and token level, five seeds each on the demo task.

    python benchmarks/learning.py                 # all; goes on where it stopped
    python benchmarks/learning.py --seeds 1 --tasks 100 --output /tmp/learning

Every run trains the shipped recipe as it is and is then evaluated on 500 held-out tasks, before and after, sampled and
greedy. Writes results/learning.json, learning.md and learning.svg.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from recording import Row, finish, measure, parser_of, save_plot, save_rows

from marft.config import load_recipe
from marft.evaluation.session import evaluate_checkpoints

RECIPES = Path(__file__).parents[1] / "recipes"
CASES = {
    "dual, action": ("demo.toml", "action"),
    "dual, token": ("demo_token.toml", "token"),
    "single, action": ("demo_single.toml", "action"),
    "single, token": ("demo_single.toml", "token"),
}


def main() -> None:
    parser = parser_of(__doc__, "learning")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    jobs = []
    for case in CASES:
        for seed in range(arguments.seeds):
            name = f"{case.replace(', ', '-')}-{seed}"
            jobs.append((name, partial(one, case, seed, arguments.tasks, arguments.output, name)))
    rows = measure(jobs, arguments.output, arguments.workers, describe)
    save_rows(arguments.results, "learning", rows, markdown(rows))
    save_plot(arguments.results, "learning", plot(rows))


def describe(row: Row) -> str:
    gains = ", ".join(f"{mode} {row['before'][mode]:.1%} → {row['after'][mode]:.1%}" for mode in ("sampled", "greedy"))
    return f"{row['case']:15s} seed {row['seed']}: {gains}"


def one(case: str, seed: int, tasks: int, output: Path, name: str) -> Row:
    """Train and evaluate one run."""
    recipe, level = CASES[case]
    began = time.perf_counter()
    run = load_recipe(
        RECIPES / recipe,
        ["--algorithm.level", level, "--seed", str(seed), "--output", str(output), "--name", name],
    )
    folder = finish(run)
    evaluations = evaluate_checkpoints(
        run, folder, ["base", "last"], ("sampled", "greedy"), tasks, False, lambda _=None: None
    )
    metrics = folder.read_metrics()
    return {
        "case": case,
        "seed": seed,
        "before": {e.mode: e.accuracy for e in evaluations if e.checkpoint == "base"},
        "after": {e.mode: e.accuracy for e in evaluations if e.checkpoint != "base"},
        "training_accuracy": [row["accuracy"] for row in metrics],
        "episodes": sum(row["episodes"] for row in metrics),
        "seconds": sum(row["seconds"] for row in metrics),
        "wall_seconds": time.perf_counter() - began,
    }


def markdown(rows: list[Row]) -> str:
    lines = [
        "| team, level | before (sampled) | after: mean | worst | best | greedy: mean | worst | least gain | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case in CASES:
        mine = [row for row in rows if row["case"] == case]
        if not mine:
            continue
        sampled = [row["after"]["sampled"] for row in mine]
        greedy = [row["after"]["greedy"] for row in mine]
        gain = min(row["after"][mode] - row["before"][mode] for row in mine for mode in ("sampled", "greedy"))
        before = np.mean([row["before"]["sampled"] for row in mine])
        seconds = np.mean([row["seconds"] for row in mine])
        lines.append(
            f"| {case} | {before:.1%} | {np.mean(sampled):.1%} | {min(sampled):.1%} | {max(sampled):.1%} "
            f"| {np.mean(greedy):.1%} | {min(greedy):.1%} | {100 * gain:+.1f} | {seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def plot(rows: list[Row]) -> Figure:
    """Training accuracy: the mean over seeds and the band from worst to best, smoothed over three steps."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for case in CASES:
        curves = [np.convolve(r["training_accuracy"], np.ones(3) / 3, "valid") for r in rows if r["case"] == case]
        if not curves:
            continue
        steps = np.arange(3, 3 + len(curves[0]))
        (line,) = axes.plot(steps, np.mean(curves, axis=0), label=case)
        axes.fill_between(steps, np.min(curves, axis=0), np.max(curves, axis=0), alpha=0.15, color=line.get_color())
    axes.set_xlabel("training step (64 episodes each)")
    axes.set_ylabel("accuracy of sampled episodes")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
