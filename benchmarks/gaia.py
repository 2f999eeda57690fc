"""Train a team and one agent on questions that need a search (level 1 of ``gaia``), at equal tokens.

    python benchmarks/gaia.py                                # three seeds; resumes
    python benchmarks/gaia.py --seeds 0 --steps 20 --tasks 60
    python benchmarks/gaia.py --only-table                   # from stored results

The team is the recipe ``gaia`` as it ships: a searcher and an answerer. ``gaia_single``, one agent with the same model,
trains until it has sampled as many tokens. Base and last checkpoint attempt the same held-out questions four times
each, sampled as in training. The table shows accuracy, pass@4 and pass^4. Intervals resample questions, but not
attempts or seeds. Both arms are compared on the same questions. Writes results/gaia.json and results/gaia.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
from environments import World, sampled, trained

from marft.config import load_recipe
from marft.evaluation.ratios import Ratio, clustered_interval, compare_ratios, compute_pass_ratios
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.runs.run_folder import RunFolder

ARMS = {"team": "a searcher and an answerer", "alone": "one agent that does both"}
ATTEMPTS = 4
NAMES = ("accuracy", f"pass@{ATTEMPTS}", f"pass^{ATTEMPTS}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="training steps of the team; 0 uses the recipe's")
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks per evaluation")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--output", type=Path, default=Path("runs/gaia"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument("--only-table", action="store_true", help="only write the table, from stored results")
    arguments = parser.parse_args()
    path = arguments.results / "gaia.json"
    changes = [*(["--training.steps", str(arguments.steps)] if arguments.steps else [])]
    settings = {"changes": changes, "tasks": arguments.tasks}
    for seed in arguments.seeds if not arguments.only_table else ():
        for arm in ARMS:
            measure(path, settings, World("gaia", changes=tuple(changes)), arm, seed, arguments)
    lines = table(json.loads(path.read_text(encoding="utf-8"))["runs"])
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def measure(
    path: Path, settings: Mapping[str, Any], world: World, arm: Any, seed: int, arguments: argparse.Namespace
) -> None:
    """Train one run, evaluate it before and after, and add it to the results.

    Raises:
        ValueError: the stored results have other settings.
    """
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"settings": settings, "runs": {}}
    if found["settings"] != settings:
        raise ValueError(f"{path} was measured with {found['settings']}, not {settings}; use another --results folder")
    if f"{arm}-{seed}" in found["runs"]:
        return
    folder = trained("gaia", world, arm, seed, arguments)
    rows = folder.read_metrics()
    one = {
        "tokens": sum(map(sampled, rows)), "steps": len(rows), "seconds": sum(row["seconds"] for row in rows),
        "counts": counted(folder, arguments.tasks),
    }  # fmt: skip
    runs = {**found["runs"], f"{arm}-{seed}": one}
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine.describe(), "settings": settings, "runs": dict(sorted(runs.items()))}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def counted(folder: RunFolder, tasks: int) -> dict[str, dict[str, float]]:
    """Return the share of attempts that solved a question, by checkpoint and held-out question."""
    run = load_recipe(folder.config_path)
    found = evaluate_checkpoints(
        run, folder, EvaluationPlan(["base", "last"], ("sampled",), tasks, attempts=ATTEMPTS), lambda *_: None
    )
    return {one.checkpoint: {task: float(share) for task, share in one.outcomes.items()} for one in found}


def by_question(outcomes: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Ratio]]:
    """Return accuracy, pass@4 and pass^4 by question, over several runs that share the questions."""
    of_runs = [
        compute_pass_ratios({task: (ATTEMPTS, round(share * ATTEMPTS)) for task, share in of.items()}, ATTEMPTS)
        for of in outcomes
    ]
    names = (f"avg@{ATTEMPTS}", *NAMES[1:])
    return {task: {name: Ratio.total(of[task][name] for of in of_runs) for name in names} for task in of_runs[0]}


def shares_of(outcomes: Sequence[Mapping[str, float]]) -> list[str]:
    """Return accuracy, pass@4 and pass^4 over several runs, with intervals that resample questions."""
    questions = by_question(outcomes)
    cells = []
    for name in next(iter(questions.values())):
        share = clustered_interval([of[name] for of in questions.values()], ATTEMPTS * len(outcomes))
        assert share, "every question is attempted"
        value, (low, high) = share
        cells.append(f"{value:.1%} ({low:.1%} to {high:.1%})")
    return cells


def table(runs: Mapping[str, Any]) -> list[str]:
    """Return a line per arm, before and after, and the difference of the single agent on the same questions."""
    head = ["who", "", "seeds", *NAMES, "tokens sampled in training", "minutes a run"]
    lines = [f"| {' | '.join(head)} |", f"| --- | --- | ---: |{' ---: |' * 5}"]
    trained_ones: dict[str, list[Mapping[str, float]]] = {}
    for arm, words in ARMS.items():
        of = {key: run for key, run in sorted(runs.items()) if key.startswith(f"{arm}-")}
        if not of:
            continue
        before = "base"
        tokens, minutes = (sum(run[key] for run in of.values()) / len(of) for key in ("tokens", "seconds"))
        untuned = shares_of([run["counts"][before] for run in of.values()])
        lines.append(f"| {words} | untuned | {len(of)} | {' | '.join(untuned)} | | |")
        trained_ones[arm] = [
            next(counts for name, counts in run["counts"].items() if name != before) for run in of.values()
        ]
        last = shares_of(trained_ones[arm])
        lines.append(f"| | trained | {len(of)} | {' | '.join(last)} | {tokens:,.0f} | {minutes / 60:.0f} |")
    if trained_ones.keys() == ARMS.keys():
        lines += ["", *differences(*trained_ones.values())]
    return lines


def differences(team: Sequence[Mapping[str, float]], alone: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the difference of one agent to the team, with intervals that resample their shared questions."""
    lines = ["| one agent − the team, trained | points | 95 % |", "| --- | ---: | --- |"]
    before, after = by_question(team), by_question(alone)
    for name, label in zip(next(iter(before.values())), NAMES, strict=True):
        found = compare_ratios(
            {task: of[name] for task, of in before.items()}, {task: of[name] for task, of in after.items()}
        )
        assert found, "both were asked"
        assert found.interval, "questions differ"
        low, high = found.interval
        lines.append(f"| {label} | {100 * found.gain:+.1f} | {100 * low:+.1f} to {100 * high:+.1f} |")
    return lines


if __name__ == "__main__":
    main()
