"""Train teams of n agents on sums of n terms: n − 1 reasoners with one step each, then the actor.

Every agent has its own weights (a LoRA on the one base), and sees the previous message. A step plays 32 episodes for
any team size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recording import Job, Row

from marft.config import RunSettings
from marft.config.load import parse_recipe
from studies.factors import BASE, CLIP, LEARNING_RATE, Factors, cell, dots, rows_of, settings_of

SIZES = (1, 2, 4, 6, 8, 12)
SEEDS = 2
FACTORS: Factors = {"learning rate": LEARNING_RATE, "clip": CLIP}
REASONER = "You are the reasoner. Work out the first step and pass on what is left."
ACTOR = r"You are the actor. Finish the work with the help of the message and put the answer in \boxed{}."


def team_of(size: int, overrides: Sequence[str]) -> RunSettings:
    """Return the recipe of a team of ``size`` agents."""
    reasoners = [f"reasoner_{number}" if size > 2 else "reasoner" for number in range(1, size)]
    sampling = {"max_new_tokens": 16 + 6 * size}
    agents: list[dict[str, Any]] = [
        {"role": role, "policy": role, "instructions": REASONER, "sampling": sampling} for role in reasoners
    ]
    agents.append({"role": "actor", "policy": "actor", "instructions": ACTOR, "answers": True, "sampling": sampling})
    sums = {"min_terms": size, "max_terms": size, "min_digits": 2, "max_digits": 2}
    return parse_recipe(
        {
            "name": f"population_{size}",
            "models": {"base": {"path": "tiny"}},
            "policies": {agent["role"]: {"model": "base", "lora": {"rank": 8, "alpha": 16}} for agent in agents},
            "agents": agents,
            "team": {"organization": "chain", "visible": "previous"},
            "environment": {
                "name": "reasoning_gym", "dataset": "chain_sum", "params": sums,
                # there are only ninety questions with one term
                "train_tasks": 5000 if size > 1 else 60, "held_out_tasks": 1000 if size > 1 else 10,
            },
            "algorithm": {"name": "marft", "optimizer": {"learning_rate": 5e-4}},
            "rollout": {"tasks_per_step": 8, "samples_per_task": 4},
            "training": {"steps": 30},
        },
        overrides,
    )  # fmt: skip


def jobs(tasks: int, output: str) -> list[Job]:
    return [
        job_of(size, setting, f"{size}-{number}-{seed}", seed, tasks, output)
        for seed in range(SEEDS)
        for number, setting in enumerate(settings_of(FACTORS))
        for size in SIZES
    ]


def job_of(size: int, setting: str, name: str, seed: int, tasks: int, output: str) -> Job:
    overrides = [*settings_of(FACTORS)[setting], "--seed", str(seed), "--output", output, "--name", name]
    checkpoints = ("base", "last") if setting == BASE else ("last",)
    return Job(team_of(size, overrides), tasks, {"size": size, "setting": setting}, checkpoints)


def describe(row: Row) -> str:
    before = f"{row['before']['sampled']:.1%} → " if row["before"] else ""
    return f"{row['size']:2d} agents, {row['setting']:22s} seed {row['seed']}: {before}{row['after']['sampled']:.1%}"


def table(rows: Sequence[Row]) -> str:
    columns = [(factor, value) for factor, values in FACTORS.items() for value in values if values[value]]
    titles = [f"{factor} {value}" for factor, value in columns]
    lines = [
        f"| agents | held-out tasks | untuned | as shipped | {' | '.join(titles)} | ms an action | s an episode |",
        f"| ---: | ---: | ---: | --- | {' | '.join('---' for _ in titles)} | ---: | ---: |",
    ]
    for size in SIZES:
        mine = [row for row in rows if row["size"] == size]
        shipped = [row for row in mine if row["setting"] == BASE]
        if not shipped:
            continue
        before = float(np.mean([row["before"]["sampled"] for row in shipped]))
        cells = [cell(rows_of(mine, factor, value, FACTORS)) for factor, value in columns]
        pace = float(np.mean([1000 * row["seconds"] / (sum(row["episodes"]) * size) for row in shipped]))
        figures = [f"{size}", f"{shipped[0]['tasks']}", f"{before:.1%}", cell(shipped), *cells, f"{pace:.1f}"]
        figures.append(f"{pace * size / 1000:.3f}")  # playing and learning
        lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row]) -> Figure:
    """Plot held-out accuracy over the size of the team, a line per setting."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (factor, values) in zip(figure.subplots(1, 2, sharey=True), FACTORS.items(), strict=True):
        for value in values:
            mine = rows_of(rows, factor, value, FACTORS)
            dots(axes, SIZES, [[row for row in mine if row["size"] == size] for size in SIZES], label=value)
        before = [[r["before"]["sampled"] for r in rows if r["size"] == size and r["before"]] for size in SIZES]
        axes.plot([np.mean(b) if b else np.nan for b in before], "--", color="grey", linewidth=1, label="untuned")
        axes.set_title(factor, fontsize=10, loc="left")
        axes.set_xlabel("agents, and terms of a sum", fontsize=9)
        axes.legend(frameon=False, fontsize=8)
    figure.supylabel("held-out accuracy, sampled", fontsize=9)
    return figure
