"""Train a team that learns to use a calculator.

    python benchmarks/tools.py                  # creates the checkpoint, trains, evaluates; resumes
    python benchmarks/tools.py --seeds 1 --levels token

A reasoner has a calculator, and an actor answers from its message. The tasks are products of three-digit numbers. Both
start from a checkpoint (``calculator.py``) that calls the tool in part of its attempts, often wrongly. The reward is
only right or wrong. The levels are one decision per action, and one per token. Writes results/tools.json, .md and .svg.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from calculator import ACTOR, REASONER, make
from matplotlib.figure import Figure
from recording import Job, Row, band, interval, measure, parser_of, save_plot, save_rows, tidy
from warm_up import digest

from marft.common.types import Episode
from marft.config.load import parse_recipe
from marft.evaluation.evaluate import Mode
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder

MODES: tuple[Mode, ...] = ("sampled", "greedy")
USE = {
    "tool_use_rate": "episodes with a call",
    "tool_errors": "failed calls an episode",
    "tool_tokens": "tool tokens an episode",
}

HOPS: Mapping[str, Callable[[Episode, str], bool]] = {  # (episode that reached the hop, product) → passed
    "the reasoner calls": lambda episode, _: bool(episode.actions[0].calls),
    "it gets a result": lambda episode, _: not episode.actions[0].calls[-1].error,
    "of the right numbers": lambda episode, product: episode.actions[0].calls[-1].output == product,
    "it passes it on": lambda episode, product: product in episode.actions[0].text,
    "the actor answers with it": lambda episode, _: bool(episode.success),
}
WINDOW = 5  # training steps at the beginning and at the end, for the shares of hops


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--levels", default="action,token")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    output = arguments.output / "tools"
    checkpoint = output / "checkpoint"
    if not checkpoint.exists():
        make(checkpoint)
    jobs = [
        job_of(level, seed, arguments.tasks, arguments.steps, output, checkpoint)
        for seed in range(arguments.seeds)
        for level in arguments.levels.split(",")
    ]
    rows = measure(jobs, arguments.workers, describe)
    rows = [{**row, "use": curves_of(job), "hops": hops_of(job)} for job, row in zip(jobs, rows, strict=True)]
    save_rows(arguments.results, "tools", rows, f"{table(rows)}\n{hop_table(rows)}")
    save_plot(arguments.results, "tools", plot(rows))


def job_of(level: str, seed: int, tasks: int, steps: int, output: Path, checkpoint: Path) -> Job:
    run = parse_recipe(
        {
            "name": f"{level}-{seed}", "seed": seed, "output": str(output),
            "models": {"base": {"path": str(checkpoint)}},
            "policies": {role: {"model": "base"} for role in ("reasoner", "actor")},
            "tools": {"calculator": {"name": "function", "call": "calculator:multiply"}},
            "agents": [
                {
                    "role": "reasoner", "policy": "reasoner", "instructions": REASONER, "tools": ["calculator"],
                    "tool_use": {"max_rounds": 2}, "sampling": {"max_new_tokens": 192},
                },
                {
                    "role": "actor", "policy": "actor", "instructions": ACTOR, "answers": True,
                    "sampling": {"max_new_tokens": 32},
                },
            ],
            "environment": {
                "name": "reasoning_gym", "dataset": "products",
                "params": {"min_terms": 2, "max_terms": 2, "min_digits": 3, "max_digits": 3},
            },
            "algorithm": {"name": "marft", "level": level, "optimizer": {"learning_rate": 5e-4}},
            "rollout": {"tasks_per_step": 16, "samples_per_task": 4}, "training": {"steps": steps},
        }
    )  # fmt: skip
    return Job(run, tasks, {"case": f"{level} level", "checkpoint": digest(checkpoint)}, ("base", "last"), MODES)


def describe(row: Row) -> str:
    return f"{row['case']} seed {row['seed']}: {row['before']['sampled']:.1%} → {row['after']['sampled']:.1%}"


def curves_of(job: Job) -> dict[str, list[float]]:
    """Return the reasoner's tool use in every training step, per episode."""
    steps = RunFolder(Path(job.run.output) / job.run.name).read_metrics()
    return {name: [_an_episode(step, f"agents/reasoner/{name}", step["episodes"]) for step in steps] for name in USE}


def hops_of(job: Job) -> dict[str, dict[str, float]]:
    """Return the share of episodes that pass each hop, of those that reached it, in the first and last steps."""
    steps = RunFolder(Path(job.run.output) / job.run.name).recorded_steps()
    shares: dict[str, dict[str, float]] = {}
    for when, chosen in (("first", steps[:WINDOW]), ("last", steps[-WINDOW:])):
        left, shares[when] = [episode for step in chosen for episode in read_episodes(step) if episode.is_scored], {}
        for hop, goes_on in HOPS.items():
            kept = [episode for episode in left if goes_on(episode, _product(episode))]
            shares[when][hop] = len(kept) / max(1, len(left))
            left = kept
    return shares


def _product(episode: Episode) -> str:
    return str(math.prod(map(int, re.findall(r"\d+", episode.task.prompt))))


def held_out(row: Row, when: str, mode: str) -> dict[str, float]:
    """Return the reasoner's tool use on held-out tasks, per episode."""
    return {name: _an_episode(row["agents"][when][mode]["reasoner"], name, row["tasks"]) for name in USE}


def _an_episode(metrics: Mapping[str, float], name: str, episodes: float) -> float:
    """Return a share as it is, and a count per episode. Without tool use there is no value, which counts as 0."""
    return (metrics.get(name) or 0.0) / (1.0 if name.endswith("tool_use_rate") else episodes)


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| training | sampling | solved, before | after: mean | 95 % interval over seeds | worst seed "
        f"| {' | '.join(f'{title}, before | after' for title in USE.values())} |",
        "| --- | --- | ---: | ---: | --- | ---: |" + " ---: | ---: |" * len(USE),
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        lines += [_line(case, mode, mine) for mode in MODES]
    return "\n".join(lines) + "\n"


def _line(case: str, mode: Mode, rows: Sequence[Row]) -> str:
    solved = {when: [row[when][mode] for row in rows] for when in ("before", "after")}
    use = {when: [held_out(row, when, mode) for row in rows] for when in ("before", "after")}
    cells = [case, mode, f"{np.mean(solved['before']):.1%}", f"{np.mean(solved['after']):.1%}"]
    cells += [interval(rows, mode=mode), f"{min(solved['after']):.1%}"]
    for name in USE:
        style = {"tool_use_rate": ".1%", "tool_errors": ".3f", "tool_tokens": ".1f"}[name]
        cells += [format(float(np.mean([one[name] for one in use[when]])), style) for when in ("before", "after")]
    return f"| {' | '.join(cells)} |"


def hop_table(rows: Sequence[Row]) -> str:
    cases = list(dict.fromkeys(row["case"] for row in rows))
    titles = [f"{case}, {when} {WINDOW} steps" for case in cases for when in ("first", "last")]
    lines = [f"| of those that came so far | {' | '.join(titles)} |", "| --- |" + " ---: |" * len(titles)]
    for hop in HOPS:
        shares = [
            np.mean([row["hops"][when][hop] for row in rows if row["case"] == case])
            for case in cases
            for when in ("first", "last")
        ]
        lines.append(f"| {hop} | {' | '.join(f'{share:.1%}' for share in shares)} |")
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    drawn = {"accuracy": "tasks solved", "tool_use_rate": USE["tool_use_rate"], "tool_errors": USE["tool_errors"]}
    for axes, (name, title) in zip(figure.subplots(1, 3), drawn.items(), strict=True):
        for case in dict.fromkeys(row["case"] for row in rows):
            mine = [row for row in rows if row["case"] == case]
            band(axes, [{**row["curves"], **row["use"]}[name] for row in mine], case)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("training step (64 episodes each)", fontsize=8)
        axes.set_ylim(0, None if name == "tool_errors" else 1)
        axes.legend(frameon=False)
        tidy(axes)
    return figure


if __name__ == "__main__":
    main()
