"""A memory team trained as one, each agent for itself, and not at all: does it pay to share what answers earn?

    python benchmarks/comam.py --threads 1                   # what is not there yet; it goes on where it stopped
    python benchmarks/comam.py --only-table                  # from what is there

The recipe ``memory`` under CoMAM's credit (arXiv:2603.12631), in arms that differ in one key of it. *Joint*: as it ships,
each agent's own reward and an adaptive share of the team's. *Independent*: writer and retriever learn from their own
rewards alone, coverage and retrieval, and the answerer, who has none, from answers. *Team*: nobody has rewards of its own.
Each seed's teams are evaluated on the same held-out conversations, sampled as in training. Differences are paired by
conversation, each over all seeds (evaluation/bootstrap.py), and by seed (Student's t). The weights of the global reward
are those of training; what other measures of consistency would have been is counted on the joint runs' episodes. Writes
results/comam.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
from environments import World, trained
from matplotlib.figure import Figure

from marft.config import load_recipe
from marft.evaluation.bootstrap import paired, student_t
from marft.evaluation.session import evaluate_checkpoints
from marft.evaluation.trajectories.ratio import Ratio
from marft.learning.credit.comam import CoMAM
from marft.learning.credit.consistency import CONSISTENCIES
from marft.learning.interfaces import CreditInputs
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder

ARMS: Mapping[str, World] = {
    "joint": World("memory"),
    "independent": World("memory", changes=("--algorithm.credit.fixed_weights", "{ writer = 0, retriever = 0 }")),
    "team": World("memory", changes=("--environment.local_weight", "0")),
}
UNTUNED = "untuned"
COLOURS = {"joint": "C0", "independent": "C1", "team": "C2"}
AGENTS = ("writer", "retriever")  # who have rewards of their own
MEASURES = {"answers": "right answers", "conversations": "all of a conversation's"}
CURVES = ("reward", "environment/coverage", "environment/retrieval_recall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--tasks", type=int, default=200, help="held-out conversations, for each evaluation")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: all cores")
    parser.add_argument("--output", type=Path, default=Path("runs/comam"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument("--only-table", action="store_true", help="of what has been measured")
    arguments = parser.parse_args()
    path = arguments.results / "comam.json"
    for seed in arguments.seeds if not arguments.only_table else ():
        for arm in arguments.arms:
            runs = read(path)
            if f"{arm}-{seed}" not in runs:
                runs |= measured(arm, seed, arguments)
                whole = {"machine": machine.describe(), "runs": dict(sorted(runs.items()))}
                path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    runs = read(path)
    lines = [*table(runs), "", *differences(runs), "", *weights(runs)]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plot(runs).savefig(path.with_suffix(".svg"))
    print("\n".join(lines))


def measured(arm: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """An arm's run of a seed, trained and evaluated; that of the first arm brings the untuned team."""
    folder = trained(f"memory-{arm}", ARMS[arm], "team", seed, arguments)
    names = ["base", "last"] if arm == "joint" else ["last"]
    found = evaluate_checkpoints(
        load_recipe(folder.config), folder, names, ("sampled",), arguments.tasks, False, lambda *_: None
    )
    rows = folder.read_metrics()
    wanted = [*CURVES, *(f"agents/{agent}/{name}" for agent in AGENTS for name in ("global_weight", "fallback_fraction"))]
    told: dict[str, Any] = {
        "seconds": sum(row["seconds"] for row in rows),
        "steps": {name: [row.get(name) for row in rows] for name in wanted},
    }
    if arm == "joint":
        told["measures"] = other_measures(folder)
    results = {f"{arm}-{seed}": {**_held_out(found[-1]), **told}}
    return {f"{UNTUNED}-{seed}": _held_out(found[0]), **results} if arm == "joint" else results


def _held_out(evaluation: Any) -> dict[str, dict[str, float]]:
    """By conversation: the share of right answers, and whether all were right."""
    return {
        "answers": dict(sorted(evaluation.rewards.items())),
        "conversations": {task: float(solved) for task, solved in sorted(evaluation.outcomes.items())},
    }


def other_measures(folder: RunFolder) -> dict[str, dict[str, float]]:
    """By measure of consistency: the weights of a run's recorded episodes, mean over its steps."""
    found: dict[str, dict[str, list[float]]] = {name: {agent: [] for agent in AGENTS} for name in CONSISTENCIES}
    for path in folder.recorded_steps():
        episodes = [episode for episode in read_episodes(path) if episode.scored and episode.actions]
        for name in CONSISTENCIES:
            metrics = CoMAM(consistency=name).assign(CreditInputs(episodes, "action")).metrics
            for agent in AGENTS:
                found[name][agent].append(metrics[f"agents/{agent}/global_weight"])
    return {name: {agent: float(np.mean(some)) for agent, some in agents.items()} for name, agents in found.items()}


def table(runs: Mapping[str, Any]) -> list[str]:
    """A line for each arm: means over its seeds, and each seed's share of right answers."""
    lines = [
        f"| arm | seeds | {' | '.join(f'{label}, %' for label in MEASURES.values())} | of each seed | minutes a run |",
        "| --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for arm in (UNTUNED, *ARMS):
        mine = _of(runs, arm)
        if mine:
            shares = [f"{100 * np.mean([_share(run, name) for run in mine.values()]):.1f}" for name in MEASURES]
            each = ", ".join(f"{100 * _share(run, 'answers'):.1f}" for run in mine.values())
            minutes = [run["seconds"] / 60 for run in mine.values() if "seconds" in run]
            cells = [arm, str(len(mine)), *shares, each, f"{np.mean(minutes):.1f}" if minutes else ""]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def differences(runs: Mapping[str, Any]) -> list[str]:
    """A line for each pair of arms and each measure: what was gained, over conversations and over seeds."""
    lines = [
        "| difference | of | points | 95 %, over conversations | 95 %, over seeds | seeds ahead |",
        "| --- | --- | ---: | --- | --- | ---: |",
    ]
    for before, after in (
        ("independent", "joint"), ("team", "joint"), ("team", "independent"), *((UNTUNED, arm) for arm in ARMS),
    ):  # fmt: skip
        one, two = _of(runs, before), _of(runs, after)
        seeds = sorted(one.keys() & two.keys())
        for name, label in MEASURES.items() if seeds else ():
            difference = paired(*({
                task: Ratio(sum(side[seed][name].get(task, 0.0) for seed in seeds), float(len(seeds)))
                for task in one[seeds[0]][name]
            } for side in (one, two)))  # fmt: skip
            assert difference is not None
            gains = [_share(two[seed], name) - _share(one[seed], name) for seed in seeds]
            over = [_points(difference.interval), _points(_over_seeds(gains))]
            ahead = f"{sum(gain > 0 for gain in gains)} of {len(seeds)}"
            cells = [f"{after} − {before}", label, f"{100 * difference.gain:+.1f}", *over, ahead]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def weights(runs: Mapping[str, Any]) -> list[str]:
    """A line for each measure of consistency: its weights on the joint runs' episodes."""
    joint = _of(runs, "joint").values()
    lines = [f"| consistency | {' | '.join(AGENTS)} |", "| --- |" + " ---: |" * len(AGENTS)]
    for name in CONSISTENCIES if joint else ():
        means = [np.mean([run["measures"][name][agent] for run in joint]) for agent in AGENTS]
        lines.append(f"| {name} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    return lines


def plot(runs: Mapping[str, Any]) -> Figure:
    """Step by step, means over the seeds: weights of the global reward, and what is earned in each arm."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    upper, lower = figure.subplots(2, 3)
    for axes, name, title in (
        (upper[0], "global_weight", "weight of the global reward"),
        (upper[1], "fallback_fraction", "groups without a signal of their own"),
    ):
        for number, agent in enumerate(AGENTS):
            _draw(axes, [run["steps"][f"agents/{agent}/{name}"] for run in _of(runs, "joint").values()], f"C{number + 3}", agent)
        axes.set(title=title, ylim=(0, 1))
        axes.legend()
    for axes, name, title in zip((upper[2], *lower), CURVES, ("right answers", "coverage", "retrieval"), strict=False):
        for arm in ARMS:
            _draw(axes, [run["steps"][name] for run in _of(runs, arm).values()], COLOURS[arm], arm)
        axes.set(title=f"{title}, in training")
        axes.legend()
    for place, arm in enumerate((UNTUNED, *ARMS)):
        shares = [_share(run, "answers") for run in _of(runs, arm).values()]
        lower[2].plot([place] * len(shares), shares, "o", color=COLOURS.get(arm, "C7"))
    lower[2].set(title="right answers, held out", xticks=range(1 + len(ARMS)), xticklabels=(UNTUNED, *ARMS))
    for axes in (*upper, *lower):
        axes.grid(alpha=0.3)
    return figure


def _draw(axes: Any, curves: Sequence[Sequence[float | None]], colour: str, label: str) -> None:
    """Each seed as a thin line, and their mean."""
    if not curves:
        return
    values = np.array(curves, np.float64)
    steps = np.arange(1, values.shape[1] + 1)
    for row in values:
        axes.plot(steps, row, color=colour, lw=0.5, alpha=0.35)
    axes.plot(steps, np.nanmean(values, 0), color=colour, lw=1.8, label=label)


def _of(runs: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """An arm's runs by seed."""
    return {key.rpartition("-")[2]: run for key, run in sorted(runs.items()) if key.startswith(f"{arm}-")}


def _share(run: Mapping[str, Any], name: str) -> float:
    return float(np.mean(list(run[name].values())))


def _over_seeds(gains: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval of a mean of seeds."""
    if len(gains) < 3:
        return None
    reach = student_t(0.975, len(gains) - 1) * float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    return float(np.mean(gains)) - reach, float(np.mean(gains)) + reach


def _points(interval: tuple[float, float] | None) -> str:
    """
    >>> _points((-0.01, 0.125))
    '-1.0 to +12.5'
    """
    return f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}" if interval else ""


def read(path: Path) -> dict[str, Any]:
    """What has been measured, by arm and seed."""
    return dict(json.loads(path.read_text(encoding="utf-8"))["runs"]) if path.is_file() else {}


if __name__ == "__main__":
    main()
