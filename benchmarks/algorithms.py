"""Train the demo team with every preset, in 30 steps of 128 sampled actions: accuracy, speed, failures.

    python benchmarks/algorithms.py                        # all presets; resumes
    python benchmarks/algorithms.py --presets marft,grpo --merge     # reruns two, keeps the stored rows of the others
    python benchmarks/algorithms.py --presets rloo --name faster --algorithm.optimizer.learning_rate 1.5e-3

All runs train the bundled demo team from the same model, at the same learning rate. Presets that fork episodes attempt
fewer tasks, for the same number of actions. DAPO plays more, because dynamic sampling replaces uninformative groups.
Any setting can be overridden as in ``marft train``. Held-out accuracy is measured on 500 tasks, sampled. Writes
results/<name>.json, .md and .svg.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from recording import (
    Job,
    Row,
    collapsed,
    interval,
    measure,
    parser_of,
    save_plot,
    save_rows,
    smooth,
    stored_rows,
    tidy,
)

from marft.config import RunSettings, load_recipe
from marft.config.algorithms import PRESETS

RECIPE = "demo"
GOOD = 0.8  # accuracy of training episodes, over three steps
TASKS_PER_STEP = {"at-grpo": 11}  # an attempt samples 12 actions with 4 candidates, 8 with 2 re-samples each
SAMPLES = {"at-grpo": 1, "coma": 1}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--name", default="algorithms", help="file name of the results")
    parser.add_argument(
        "--merge", action="store_true", help="keep the stored rows of presets that are not in --presets"
    )
    arguments, changes = parser.parse_known_args()
    output = str(arguments.output / arguments.name)
    jobs = [
        job_of(name, seed, arguments.tasks, ["--training.steps", str(arguments.steps), "--output", output, *changes])
        for seed in range(arguments.seeds)
        for name in arguments.presets.split(",")
    ]
    rows = measure(jobs, arguments.workers, "{preset:12s} seed {seed}: {after[sampled]:.1%}".format_map)
    if arguments.merge:
        rows = merged(rows, stored_rows(arguments.results, arguments.name))
    save_rows(arguments.results, arguments.name, rows, markdown(rows))
    save_plot(arguments.results, arguments.name, plot(rows))


def merged(rows: list[Row], stored: list[Row]) -> list[Row]:
    """Merge new rows with the stored rows of other presets, in preset order. Rows of removed presets are dropped.

    Raises:
        SystemExit: the stored runs had other seeds, steps or held-out tasks.
    """
    named = {row["preset"] for row in rows}
    others = [row for row in stored if row["preset"] in PRESETS and row["preset"] not in named]
    grounds = {_ground([row for row in rows + others if row["preset"] == name]) for name in PRESETS} - {frozenset()}
    if len(grounds) > 1:
        raise SystemExit("the stored runs had other seeds, steps or held-out tasks; run all presets, or use --name")
    return sorted(rows + others, key=lambda row: list(PRESETS).index(row["preset"]))


def _ground(rows: list[Row]) -> frozenset[tuple[int, int, int]]:
    """Return what all presets' runs must have in common: seeds, steps, held-out tasks."""
    return frozenset((row["seed"], len(row["actions"]), row["tasks"]) for row in rows)


def job_of(name: str, seed: int, tasks: int, overrides: list[str]) -> Job:
    mine = ["--algorithm", f"{{ name = '{name}', optimizer = {{ learning_rate = 5e-4 }} }}", "--seed", str(seed)]
    mine += ["--rollout.tasks_per_step", str(TASKS_PER_STEP.get(name, 16)), "--name", f"{name}-{seed}"]
    mine += ["--rollout.samples_per_task", str(SAMPLES.get(name, 4))]
    run = load_recipe(RECIPE, [*mine, *overrides])
    return Job(run, tasks, {"preset": name, "updates": updates(run)})


def updates(run: RunSettings) -> int:
    """Return the maximum number of optimizer steps of a policy, without early stops at the KL limit."""
    algorithm = run.algorithm
    return (run.training.steps - algorithm.critic.warmup_steps) * algorithm.epochs * algorithm.minibatches


def actions_until_good(row: Row) -> float:
    """Return the sampled actions, forks included, until three consecutive steps average ``GOOD``; infinity if never."""
    reached = np.flatnonzero(smooth(row["curves"]["accuracy"]) >= GOOD)
    return float(np.cumsum(row["actions"])[reached[0] + 2]) if len(reached) else math.inf


def markdown(rows: list[Row]) -> str:
    titles = ["preset", "optimizer steps", "actions", "held-out, sampled: mean", "95 % interval over seeds"]
    titles += ["worst seed", "best seed", "actions to 80 % (median)", "collapses", "seconds"]
    lines = [f"| {' | '.join(titles)} |", "| --- | ---: | ---: | ---: | --- |" + " ---: |" * 5]
    for name in dict.fromkeys(row["preset"] for row in rows):
        mine = [row for row in rows if row["preset"] == name]
        after = [row["after"]["sampled"] for row in mine]
        until = float(np.median([actions_until_good(row) for row in mine]))
        cells = [name, f"{mine[0]['updates']}", f"{np.mean([sum(row['actions']) for row in mine]):.0f}"]
        cells += [f"{np.mean(after):.1%}", interval(mine), f"{min(after):.1%}", f"{max(after):.1%}"]
        cells += ["never" if math.isinf(until) else f"{until:.0f}"]
        cells += [f"{sum(map(collapsed, mine))} of {len(mine)}", f"{np.mean([row['seconds'] for row in mine]):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(rows: list[Row]) -> Figure:
    """Plot the held-out accuracy of every seed, presets from best to worst."""
    names = list(dict.fromkeys(row["preset"] for row in rows))
    means = {name: np.mean([row["after"]["sampled"] for row in rows if row["preset"] == name]) for name in names}
    names.sort(key=lambda name: means[name])
    figure = Figure(figsize=(7, 0.28 * len(names) + 1), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(names):
        seeds = [row["after"]["sampled"] for row in rows if row["preset"] == name]
        axes.plot([min(seeds), max(seeds)], [place, place], color="C0", alpha=0.3, linewidth=5, solid_capstyle="round")
        axes.plot(seeds, [place] * len(seeds), "o", color="C0", markersize=4)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("held-out accuracy after training, sampled; a point a seed")
    axes.set_xlim(0, 1)
    tidy(axes)
    return figure


if __name__ == "__main__":
    main()
