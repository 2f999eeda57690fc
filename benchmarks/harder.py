"""Evaluate teams trained on easy tasks of a world on harder ones.

    python benchmarks/harder.py                  # trains missing runs (benchmarks/environments.py), then evaluates
    python benchmarks/harder.py --worlds relay --seeds 0

The untuned and the trained team play held-out tasks of each difficulty, sampled, over all seeds. The table shows the
solved share with Wilson's interval. Writes results/harder.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
from environments import WORLDS, trained
from matplotlib.figure import Figure

from marft.config import load_recipe
from marft.evaluation.intervals import wilson_interval
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints

LEVELS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "relay": {
        "as trained: 6 values": (),
        "8 values": ("--environment.values", "8"),
        "noise 0.1": ("--environment.noise", "0.1"),
        "noise 0.3": ("--environment.noise", "0.3"),
        "parts of 2 symbols": ("--environment.size", "2"),
    },
    "chain_sum": {
        "as trained: 3 terms": (),
        "4 terms": ("--environment.params", "{ min_terms = 4, max_terms = 4, min_digits = 2, max_digits = 2 }"),
        "5 terms": ("--environment.params", "{ min_terms = 5, max_terms = 5, min_digits = 2, max_digits = 2 }"),
        "3 terms of 3 digits": (
            "--environment.params", "{ min_terms = 3, max_terms = 3, min_digits = 3, max_digits = 3 }",
        ),
    },
    "sudoku": {
        "as trained": (),
        "6 blanks": ("--environment.blanks", "6"),
        "8 blanks": ("--environment.blanks", "8"),
        "10 blanks": ("--environment.blanks", "10"),
    },
}  # fmt: skip
COLOURS = {"base": "C7", "last": "C0"}
WORDS = {"base": "untuned", "last": "trained"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/environments"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    path = arguments.results / "harder.json"
    rows = dict(json.loads(path.read_text(encoding="utf-8"))["worlds"]) if path.is_file() else {}
    for world in arguments.worlds:
        rows[world] = measured(world, arguments)
        path.write_text(json.dumps({"machine": machine.describe(), "worlds": rows}, indent=2) + "\n", encoding="utf-8")
    (arguments.results / "harder.md").write_text("\n".join(table(rows)) + "\n", encoding="utf-8")
    plot(rows).savefig(arguments.results / "harder.svg")
    print("\n".join(table(rows)))


def measured(world: str, arguments: argparse.Namespace) -> dict[str, dict[str, list[int]]]:
    """Return the numbers of solved tasks and of all tasks, by difficulty and checkpoint."""
    found: dict[str, dict[str, list[int]]] = {level: {name: [0, 0] for name in COLOURS} for level in LEVELS[world]}
    for seed in arguments.seeds:
        folder = trained(world, WORLDS[world], "team", seed, arguments)
        for level, changes in LEVELS[world].items():
            run = load_recipe(folder.config_path, changes)
            names = list(COLOURS)
            for one in evaluate_checkpoints(
                run, folder, EvaluationPlan(names, ("sampled",), arguments.tasks), lambda *_: None
            ):
                name = "base" if one.checkpoint == "base" else "last"
                found[level][name][0] += round(sum(map(float, one.outcomes.values())))
                found[level][name][1] += len(one.outcomes)
    return found


def table(rows: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]) -> list[str]:
    """Return a line per difficulty of each world."""
    lines = ["| world | difficulty | untuned | trained |", "| --- | --- | ---: | ---: |"]
    for world, levels in rows.items():
        for level, counts in levels.items():
            cells = [_shown(*counts[name]) for name in COLOURS]
            lines.append(f"| {world} | {level} | {' | '.join(cells)} |")
    return lines


def _shown(solved: int, tasks: int) -> str:
    """Format a share with its interval.

    >>> _shown(50, 100)
    '50 % (40 to 60)'
    """
    low, high = wilson_interval(solved, tasks)
    return f"{100 * solved / tasks:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def plot(rows: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]) -> Figure:
    """Plot a panel per world and a bar per difficulty."""
    figure = Figure(figsize=(4.4 * len(rows), 3.6), layout="constrained")
    for axes, (world, levels) in zip(figure.subplots(1, len(rows), squeeze=False).flat, rows.items(), strict=True):
        for offset, name in ((-0.2, "base"), (0.2, "last")):
            shares: list[Any] = [100 * counts[name][0] / counts[name][1] for counts in levels.values()]
            places = [number + offset for number in range(len(levels))]
            axes.bar(places, shares, 0.38, color=COLOURS[name], label=WORDS[name])
        axes.set_xticks(range(len(levels)), list(levels), rotation=20, ha="right")
        axes.set(title=world, ylabel="solved, %", ylim=(0, 100))
    figure.axes[0].legend()
    return figure


if __name__ == "__main__":
    main()
