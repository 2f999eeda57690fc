"""Measure how much each setting matters: two agents, one factor at a time, three values, three seeds."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from recording import Job, Row

from marft.config import load_recipe
from studies.factors import CLIP, LEARNING_RATE, Factors, cell, dots, rows_of, settings_of

RECIPE = "demo"
SEEDS = 3
CREDIT = "--algorithm.credit"


def _hops(name: str, value: str) -> list[str]:
    """Return overrides that set one value at both hops of a game with one step, as in the paper."""
    return [f"{CREDIT}.{name}_agent", value, f"{CREDIT}.{name}_step", value]


FACTORS: Factors = {
    "learning rate": LEARNING_RATE,
    "clip": CLIP,
    "entropy": {
        "0": [],
        "0.01": ["--algorithm.entropy_coefficient", "0.01"],
        "0.1": ["--algorithm.entropy_coefficient", "0.1"],
    },
    "λ": {"0.5": _hops("lambda", "0.5"), "0.95": [], "1": _hops("lambda", "1.0")},
    "γ": {"0.9": _hops("gamma", "0.9"), "0.99": _hops("gamma", "0.99"), "1": []},
    "agent-by-agent interval": {
        steps: ["--algorithm.schedule", f"{{ name = 'agent-by-agent', interval = {steps} }}"]
        for steps in ("64", "256", "1024")
    },
}


def jobs(tasks: int, output: str) -> list[Job]:
    return [
        job_of(setting, f"{number:02d}-{seed}", seed, tasks, output)
        for seed in range(SEEDS)
        for number, setting in enumerate(settings_of(FACTORS))
    ]


def job_of(setting: str, name: str, seed: int, tasks: int, output: str) -> Job:
    overrides = [*settings_of(FACTORS)[setting], "--seed", str(seed), "--output", output, "--name", name]
    return Job(load_recipe(RECIPE, overrides), tasks, {"setting": setting})


def describe(row: Row) -> str:
    return f"{row['setting']:30s} seed {row['seed']}: {row['after']['sampled']:.1%}"


def table(rows: Sequence[Row]) -> str:
    lines = ["| factor | low | middle | high |", "| --- | --- | --- | --- |"]
    for factor, values in FACTORS.items():
        cells = [f"{value}: {cell(rows_of(rows, factor, value, FACTORS))}" for value in values]
        lines.append(f"| {factor} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row]) -> Figure:
    """Plot held-out accuracy over each factor: a dot per seed, a line through the means."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    for axes, (factor, values) in zip(figure.subplots(2, 3, sharey=True).flat, FACTORS.items(), strict=True):
        dots(axes, list(values), [rows_of(rows, factor, value, FACTORS) for value in values])
        axes.set_title(factor, fontsize=10, loc="left")
    figure.supylabel("held-out accuracy after training, sampled", fontsize=9)
    return figure
