"""Compare federated training on four sites, which share only adapters, with one run on all tasks.

    python benchmarks/federated.py --seeds 0 1 2       # an hour of one core per seed; resumes

All arms use the demo's team and sums, with equal episodes and steps. There are 30 steps of 16 tasks with four attempts
each, or of 4 tasks on each of four sites, in rounds of 5 steps. With skew 0, sites have the same kinds of tasks. With
skew 0.5, half of a site's tasks are of one kind of its own; with skew 1, all are. Sites average products or factors of
their adapters, gossip on a ring, or train alone. All teams are evaluated on the same held-out tasks of all kinds. If
sites end with different teams, the result is their mean. Tables cover everything in ``--output``, so seeds can be
added arm by arm. Writes results/federated.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import machine
from matplotlib.figure import Figure
from recording import save_plot

from marft.cli.handlers import silence_transformers
from marft.common import atomic
from marft.config import load_recipe
from marft.evaluation.intervals import student_interval
from marft.evaluation.session import EvaluationPlan, StorageOptions, evaluate_checkpoints
from marft.runs.run_folder import RunFolder, resolve_start
from marft.trainer.train import train
from marft_lab.federated.coordinator import federate
from marft_lab.federated.federation_folder import IDENTITY_FILE
from marft_lab.federated.settings import FederationSettings, parse_federation

HERE = Path(__file__).parent
SITES = ("north", "east", "south", "west")
ARMS: Mapping[str, dict[str, Any]] = {
    "average of products": {"name": "average", "quantity": "products"},
    "average of factors": {"name": "average", "quantity": "factors"},
    "gossip on a ring": {"name": "gossip", "graph": "ring"},
    "alone": {"name": "alone"},
}
POOLED = "pooled"
SETTINGS = {"rounds": 6, "steps": 5, "tasks_per_step": 16, "tasks": 500}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--skews", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, POOLED], default=[POOLED, *ARMS])
    parser.add_argument("--rounds", type=int, default=SETTINGS["rounds"])
    parser.add_argument("--steps", type=int, default=SETTINGS["steps"], help="training steps per round")
    parser.add_argument(
        "--tasks-per-step", type=int, default=SETTINGS["tasks_per_step"], help="tasks per step of all sites together"
    )
    parser.add_argument("--tasks", type=int, default=SETTINGS["tasks"], help="held-out tasks")
    parser.add_argument("--output", type=Path, default=Path("runs/federated"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS, help="folder of the table")
    given = parser.parse_args()
    silence_transformers()
    for seed in given.seeds:
        for arm in given.arms:
            for skew in given.skews if arm != POOLED else [0.0]:
                measured(given, arm, skew, seed)
    order, setting = [POOLED, *ARMS], {key: getattr(given, key) for key in SETTINGS}
    rows = [row for file in given.output.glob("*-*-*.json") if settings_of(row := atomic.read_json(file)) == setting]
    rows.sort(key=lambda row: (order.index(row["arm"]), row["skew"], row["seed"]))
    given.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine.describe(), **setting, "rows": rows}, indent=1) + "\n"
    (given.results / "federated.json").write_text(text, encoding="utf-8")
    lines = "\n".join([*table(rows), "", *differences(rows)]) + "\n"
    (given.results / "federated.md").write_text(lines, encoding="utf-8")
    save_plot(given.results, "federated", plot(rows))
    print(lines)


def settings_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a row was measured with."""
    return {key: row.get(key, usual) for key, usual in SETTINGS.items()}


def measured(given: argparse.Namespace, arm: str, skew: float, seed: int) -> None:
    """Measure an arm once, and store its row."""
    name = f"{arm.replace(' ', '-')}-{skew:g}-{seed}"
    file = given.output / f"{name}.json"
    if not file.is_file():
        accuracies = pooled(given, name, seed) if arm == POOLED else federated(given, name, arm, skew, seed)
        row = {"arm": arm, "skew": skew, "seed": seed, "accuracies": accuracies, "accuracy": fmean(accuracies)}
        row |= {key: getattr(given, key) for key in SETTINGS}
        atomic.write_file(file, json.dumps(row))
        print(f"{arm}, skew {skew:g}, seed {seed}: {row['accuracy']:.3f}", flush=True)


def changes_of(tasks_per_step: int) -> dict[str, Any]:
    """Return the overrides that all runs share."""
    params = {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 2}  # as in the demo
    return {
        "environment": {"name": "federated_world:Dealt", "dataset": "chain_sum", "params": params},
        "recipe_folder": str(HERE), "threads": 1, "sinks": [],
        "rollout.tasks_per_step": tasks_per_step, "training.record_episodes_every": 0,
    }  # fmt: skip


def pooled(given: argparse.Namespace, name: str, seed: int) -> list[float]:
    """Train one run on the tasks of all sites; return its accuracy at the end."""
    own = {"name": name, "output": str(given.output), "seed": seed, "training.steps": given.rounds * given.steps}
    run = load_recipe("demo", changes={**changes_of(given.tasks_per_step), **own})
    folder = RunFolder(given.output / name)
    resume, _, overwrite = resolve_start(folder, None)
    train(run, folder, resume=resume, overwrite=overwrite)
    return [accuracy(folder, given.tasks)]


def federated(given: argparse.Namespace, name: str, arm: str, skew: float, seed: int) -> list[float]:
    """Train four sites; return the accuracy of each distinct team at the end."""
    settings, folder = federation(given, name, arm, skew, seed), given.output / name
    federate(settings, folder, resume=(folder / IDENTITY_FILE).is_file())
    sites = SITES if ARMS[arm]["name"] != "average" else SITES[:1]  # averaging gives all sites the same team
    return [accuracy(RunFolder(folder / "sites" / site / "run"), given.tasks) for site in sites]


def federation(given: argparse.Namespace, name: str, arm: str, skew: float, seed: int) -> FederationSettings:
    """Return the settings of the federation."""
    shared = changes_of(given.tasks_per_step // len(SITES))
    sites = {
        site: {"recipe": "demo",
               "overrides": {**shared, "environment": {**shared["environment"], "site": at, "skew": skew}}}
        for at, site in enumerate(SITES)
    }  # fmt: skip
    own = {"rounds": given.rounds, "steps": given.steps, "seed": seed, "combine": ARMS[arm], "sites": sites}
    return parse_federation({"name": name, "output": str(given.output), **own}, name, HERE)


def accuracy(folder: RunFolder, tasks: int) -> float:
    """Return the share of held-out tasks that a run's newest team solves, sampled."""
    (found,) = evaluate_checkpoints(
        folder.settings(),
        folder,
        EvaluationPlan(("last",), ("sampled",), tasks),
        lambda _=None: None,
        storage=StorageOptions(folder.evaluations),
    )
    assert found.accuracy is not None
    return found.accuracy


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per arm and a column per skew: the mean over seeds, with minimum and maximum.

    >>> table([{"arm": "pooled", "skew": 0.0, "seed": 0, "accuracy": 0.9}])[-1]
    '| pooled | 90.0 % (90.0 to 90.0) |'
    """
    skews = sorted({row["skew"] for row in rows})
    lines = [f"| | {' | '.join(f'skew {skew:g}' for skew in skews)} |", f"| --- |{' ---: |' * len(skews)}"]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = []
        for skew in skews:
            found = [100 * row["accuracy"] for row in rows if row["arm"] == arm and row["skew"] == skew]
            cells.append(f"{fmean(found):.1f} % ({min(found):.1f} to {max(found):.1f})" if found else "")
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return lines


def differences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per arm and skew: the difference to the run of the same seed on all tasks.

    The line also has Student's interval over seeds, and the worst team that any site ended with.

    >>> one = {"skew": 0.0, "seed": 0}
    >>> two = [{**one, "arm": arm, "accuracy": x, "accuracies": [x]} for arm, x in (("pooled", 0.9), ("alone", 0.8))]
    >>> differences(two)[-1]
    '| alone | 0 | 1 | -10.0 |  | 80.0 % |'
    """
    lines = [
        "| against one run with all tasks | skew | seeds | points | 95 %, over seeds | the worst site |",
        "| --- | ---: | ---: | ---: | --- | ---: |",
    ]
    whole = {row["seed"]: row["accuracy"] for row in rows if row["arm"] == POOLED}
    cases = dict.fromkeys((row["arm"], row["skew"]) for row in rows if row["arm"] != POOLED)
    for arm, skew in cases:
        mine = [row for row in rows if (row["arm"], row["skew"]) == (arm, skew) and row["seed"] in whole]
        if not mine:
            continue  # no run to compare with yet
        points = [100 * (row["accuracy"] - whole[row["seed"]]) for row in mine]
        over = ""
        if len(points) > 2:
            low, high = student_interval(points)
            over = f"{low:+.1f} to {high:+.1f}"
        worst = 100 * min(min(row["accuracies"]) for row in mine)
        lines.append(f"| {arm} | {skew:g} | {len(mine)} | {fmean(points):+.1f} | {over} | {worst:.1f} % |")
    return lines


def plot(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot each arm's accuracy over skew: the mean over seeds, between minimum and maximum."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, arm in enumerate(dict.fromkeys(row["arm"] for row in rows)):
        found = {skew: [100 * row["accuracy"] for row in rows if row["arm"] == arm and row["skew"] == skew]
                 for skew in sorted({row["skew"] for row in rows if row["arm"] == arm})}  # fmt: skip
        means = [fmean(some) for some in found.values()]
        if arm == POOLED:
            axes.axhline(means[0], color="grey", ls="--", label=arm)
            continue
        axes.plot([*found], means, color=f"C{number}", marker="o", label=arm)
        lows, highs = ([of(some) for some in found.values()] for of in (min, max))
        axes.fill_between([*found], lows, highs, color=f"C{number}", alpha=0.15)
    axes.set_xlabel("skew: how much of a site's tasks are of one kind of its own")
    axes.set_ylabel("held-out tasks solved, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
