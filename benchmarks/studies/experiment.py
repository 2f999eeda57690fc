"""Run the paper's experiment on a small scale: one agent and two, action and token level, before and after training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from recording import CURVES, Job, Row, band, collapsed, interval, tidy

from marft.config import load_recipe

CASES = {
    "single, action (PPO)": ("demo_single", "action"),
    "single, token (PPO)": ("demo_single", "token"),
    "dual, action (MARFT)": ("demo", "action"),
    "dual, token (MARFT)": ("demo_token", "token"),
}
SEEDS = 5
TITLES = ("accuracy", "reward", "policy loss", "value loss", "KL, old to new (nats a token)", "entropy (nats a token)")


def jobs(tasks: int, output: str) -> list[Job]:
    return [job_of(case, seed, tasks, output) for seed in range(SEEDS) for case in CASES]


def job_of(case: str, seed: int, tasks: int, output: str) -> Job:
    recipe, level = CASES[case]
    name = f"{recipe}-{level}-{seed}"
    overrides = ["--algorithm.level", level, "--seed", str(seed), "--output", output, "--name", name]
    return Job(
        load_recipe(recipe, overrides), tasks, {"case": case}, ("base", "last"), ("sampled", "greedy")
    )  # fmt: skip


def describe(row: Row) -> str:
    gains = ", ".join(f"{mode} {row['before'][mode]:.1%} → {row['after'][mode]:.1%}" for mode in ("sampled", "greedy"))
    return f"{row['case']:22s} seed {row['seed']}: {gains}"


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| team | sampled: mean | 95 % interval over seeds | worst seed | best seed | greedy: mean | worst seed "
        "| collapses | seconds |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for team in ("single", "dual"):
        mine = [row for row in rows if row["case"].startswith(f"{team}, action")]
        lines.append(_line(f"untuned {team}", mine, "before"))
    for case in CASES:
        lines.append(_line(case, [row for row in rows if row["case"] == case], "after"))
    return "\n".join(lines) + "\n"


def _line(title: str, rows: Sequence[Row], when: str) -> str:
    sampled, greedy = ([row[when][mode] for row in rows] for mode in ("sampled", "greedy"))
    cells = [title, f"{np.mean(sampled):.1%}", interval(rows, when), f"{min(sampled):.1%}", f"{max(sampled):.1%}"]
    cells += [f"{np.mean(greedy):.1%}", f"{min(greedy):.1%}"]
    if when == "after":
        seconds = float(np.mean([row["seconds"] for row in rows]))
        cells += [f"{sum(map(collapsed, rows))} of {len(rows)}", f"{seconds:.0f}"]
    else:
        cells += ["", ""]
    return f"| {' | '.join(cells)} |"


def plot(rows: Sequence[Row]) -> Figure:
    """Plot the paper's six curves: the mean over seeds, with a band from minimum to maximum."""
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    for axes, metric, title in zip(figure.subplots(2, 3).flat, CURVES, TITLES, strict=True):
        for case in CASES:
            curves = [row["curves"][metric] for row in rows if row["case"] == case]
            if curves:
                band(axes, curves, case)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("training step (64 episodes each)", fontsize=8)
        axes.tick_params(labelsize=8)
        tidy(axes)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure
