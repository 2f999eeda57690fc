"""Train teams of 1, 2, 4, 6, 8 and 12 agents with one recipe, and compare each with its ceiling, over five seeds.

    python benchmarks/large_teams.py --ceiling    # maximum accuracy at the agents' skill before training
    python benchmarks/large_teams.py              # all runs, the control last; resumes

The recipe is the preset ``marft-team`` at the demo's learning rate, with 60 steps of 32 episodes. The control is the
unchanged preset ``marft`` with 8 and 12 agents. Finished runs are stored in results/large_teams.json, and not repeated
on any machine. Also writes large_teams.md and .svg, and large_teams_ceiling.json.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
from matplotlib.figure import Figure
from recording import Job, Row, band, interval, measure, parser_of, save_plot, save_rows, smooth, stored_rows, tidy
from studies.ceiling import measure_ceiling
from studies.populations import SIZES, team_of

from marft.config import parse_recipe, to_toml

NAME = "large_teams"
SEEDS, STEPS, STEPS_PER_POINT = 5, 60, 2
RULES: Mapping[str, Sequence[int]] = {"marft-team": SIZES, "marft": (8, 12)}  # preset → sizes
WANTED = 0.95  # share of the ceiling
FALL = 0.2  # drop below the best so far, over six steps (192 episodes)
Ceilings = Mapping[str, Any]


def jobs(tasks: int, output: str) -> list[Job]:
    """Return every job, the control last and the jobs of a seed together: the most informative runs come first."""
    return [
        job_of(rule, size, seed, tasks, output)
        for rule, sizes in RULES.items()
        for seed in range(SEEDS)
        for size in sizes
    ]


def job_of(rule: str, size: int, seed: int, tasks: int, output: str) -> Job:
    overrides = ["--algorithm.name", rule, "--training.steps", str(STEPS), "--seed", str(seed)]
    overrides += ["--output", output, "--name", f"{rule}-{size}-{seed}"]
    about = {"rule": rule, "size": size}
    return Job(team_of(size, overrides), tasks, about, ("base", "last"), ("sampled",), STEPS_PER_POINT)


def settings(job: Job) -> str:
    """Return all settings that a run's figures depend on. The output folder has a fixed value."""
    return to_toml(job.run.model_copy(update={"output": "runs"})) + f"# {job.tasks} held-out tasks\n"


def reread(stored: str) -> str:
    """Return stored settings in today's format. Settings that are no longer a valid recipe stay unchanged."""
    try:
        run = parse_recipe(tomllib.loads(stored))
    except ValueError:
        return stored
    return to_toml(run) + stored.splitlines(keepends=True)[-1]


def known(wanted: Sequence[Job], rows: Sequence[Row]) -> dict[str, Row]:
    """Return the stored rows of the jobs by name. Rows with other settings do not count.

    A setting that is newer than a row has its default, which is what the run used.
    """
    stored = {reread(row["settings"]): row for row in rows}
    return {job.run.name: stored[settings(job)] for job in wanted if settings(job) in stored}


def describe(row: Row) -> str:
    gain = f"{row['before']['sampled']:.1%} → {row['after']['sampled']:.1%}"
    return f"{row['rule']:10s} {row['size']:2d} agents, seed {row['seed']}: {gain}{', fell' if fell(row) else ''}"


def fell(row: Row) -> bool:
    """Return True if training accuracy, over six steps, ended far below its best."""
    curve = smooth(row["curves"]["accuracy"])
    return bool(curve[-1] < curve.max() - FALL)


def table(rows: Sequence[Row], ceilings: Ceilings) -> str:
    titles = ["agents", "preset", "runs", "untuned", "ceiling", "after: mean", "95 % interval over seeds", "worst seed"]
    titles += ["mean, of the ceiling", f"seeds at ≥ {WANTED:.0%} of it", "fell back"]
    lines = [f"| {' | '.join(titles)} |", "| ---: | --- |" + " ---: |" * 9]
    for size in SIZES:
        for rule in RULES:
            mine = [row for row in rows if (row["size"], row["rule"]) == (size, rule)]
            if mine:
                lines.append(_line(size, rule, mine, ceilings.get(str(size))))
    count = len([row for row in rows if row["rule"] == "marft-team"])
    lines += ["", f"{count} of {SEEDS * len(SIZES)} runs of `marft-team` and {len(rows) - count} of {2 * SEEDS} of the "
              f"control have been made."]  # fmt: skip
    return "\n".join(lines) + "\n"


def _line(size: int, rule: str, rows: Sequence[Row], ceiling: Mapping[str, float] | None) -> str:
    after = [row["after"]["sampled"] for row in rows]
    top = ceiling["ceiling"] if ceiling else float("nan")
    cells = [f"{size}", f"`{rule}`", f"{len(rows)}", f"{np.mean([row['before']['sampled'] for row in rows]):.1%}"]
    cells += [f"{top:.1%} ± {ceiling['error']:.1%}" if ceiling else "", f"{np.mean(after):.1%}", interval(rows)]
    cells += [f"{min(after):.1%}", f"{np.mean(after) / top:.1%}"]
    cells += [
        f"{sum(value >= WANTED * top for value in after)} of {len(rows)}",
        f"{sum(map(fell, rows))} of {len(rows)}",
    ]
    return f"| {' | '.join(cells)} |"


def ceiling_table(ceilings: Ceilings) -> str:
    titles = [
        "agents",
        "right steps, of those tried: lowest agent",
        "slips: mean",
        "every step right, as it is",
        "ceiling",
    ]
    lines = [f"| {' | '.join(titles)} |", f"|{' ---: |' * len(titles)}"]
    for size, found in ceilings.items():
        counts = found["agents"].values()
        slips = np.mean([count.get("slip", 0) / sum(count.values()) for count in counts])
        untuned = math.prod(count.get("right", 0) / sum(count.values()) for count in counts)
        figures = f"{min(found['skill'].values()):.1%} | {slips:.1%} | {untuned:.1%} | {found['ceiling']:.1%}"
        lines.append(f"| {size} | {figures} ± {found['error']:.1%} |")
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row], ceilings: Ceilings) -> Figure:
    """Plot training accuracy with the ceiling, a panel per size."""
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    for axes, size in zip(figure.subplots(2, 3, sharey=True).flat, SIZES, strict=True):
        for rule in RULES:
            curves = [row["curves"]["accuracy"] for row in rows if (row["size"], row["rule"]) == (size, rule)]
            if curves:
                band(axes, curves, f"{rule}, {len(curves)} seeds", STEPS_PER_POINT)
        if str(size) in ceilings:
            axes.axhline(ceilings[str(size)]["ceiling"], color="grey", linestyle="--", linewidth=1, label="ceiling")
        axes.set_title(f"{size} agents", fontsize=10, loc="left")
        axes.set_xlabel("training step (32 episodes each)", fontsize=8)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8)
        tidy(axes)
    figure.supylabel("accuracy, sampled", fontsize=9)
    return figure


def stored_ceilings(results: Path) -> Ceilings:
    path = results / f"{NAME}_ceiling.json"
    return dict(json.loads(path.read_text())["sizes"]) if path.is_file() else {}


def save_ceilings(results: Path, attempts: int) -> None:
    found = {}
    for size in SIZES:
        found[str(size)] = measure_ceiling(team_of(size, []), attempts)
        print(f"{size} agents: {found[str(size)]['ceiling']:.1%} ± {found[str(size)]['error']:.1%}", flush=True)
    results.mkdir(exist_ok=True, parents=True)
    content = {"machine": machine.describe(), "sizes": found}
    (results / f"{NAME}_ceiling.json").write_text(json.dumps(content, indent=2) + "\n")
    (results / f"{NAME}_ceiling.md").write_text(ceiling_table(found))
    print(ceiling_table(found))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--ceiling", action="store_true", help="measure the ceilings, without training")
    parser.add_argument("--attempts", type=int, default=300, help="episodes per ceiling")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="team sizes, separated by commas")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds per team, from 0 on")
    parser.set_defaults(tasks=200)
    arguments = parser.parse_args()
    if arguments.ceiling:
        save_ceilings(arguments.results, arguments.attempts)
        return
    everything = jobs(arguments.tasks, str(arguments.output / NAME))
    sizes = {int(size) for size in arguments.sizes.split(",")}
    there = known(everything, stored_rows(arguments.results, NAME))
    wanted = [job for job in everything if job.about["size"] in sizes and job.run.seed < arguments.seeds]
    todo = [job for job in wanted if job.run.name not in there]
    for first in range(0, max(1, len(todo)), arguments.workers):
        part = todo[first : first + arguments.workers]
        new = measure(part, arguments.workers, describe) if part else []
        found = known(everything, stored_rows(arguments.results, NAME))
        found |= {job.run.name: {**row, "settings": settings(job)} for job, row in zip(part, new, strict=True)}
        if found:
            _save(arguments.results, [found[job.run.name] for job in everything if job.run.name in found])


def _save(results: Path, rows: Sequence[Row]) -> None:
    ceilings = stored_ceilings(results)
    save_rows(results, NAME, rows, table(rows, ceilings))
    save_plot(results, NAME, plot(rows, ceilings))


if __name__ == "__main__":
    main()
