"""A real model: SmolLM2-135M-Instruct on three small tasks, as a team of two and as one agent at equal tokens.

    python benchmarks/real_model.py                          # gets the model first; goes on where it stopped
    python benchmarks/real_model.py --studies sums --seeds 1
    python benchmarks/real_model.py --model Qwen/Qwen2.5-0.5B-Instruct

Each agent has a LoRA of its own on all linear layers. The number of steps is the recipe's, fixed beforehand. Writes
results/real_model.json, .md and .svg, with sampled texts before and after, and the hours that the runs took.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recording import Job, Row, band, interval, measure, parser_of, save_plot, save_rows, tidy

from marft.config import parse_recipe
from marft.config.run import RunSettings

HERE = Path(__file__).parent
STUDIES = ("sums", "instructions", "facts")
TEAMS = ("team", "single")
SAMPLES = 3  # tasks of which the texts are kept


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="", help="another one than SmolLM2: a folder, or an id of the hub")
    parser.set_defaults(tasks=100)
    arguments = parser.parse_args()
    model = arguments.model or smollm2(arguments.output)
    jobs = [
        job_of(study, team, seed, model, arguments.tasks, arguments.output / "real")
        for seed in range(arguments.seeds)
        for study in arguments.studies.split(",")
        for team in TEAMS
    ]
    rows = measure(jobs, arguments.workers, describe)
    save_rows(arguments.results, "real_model", rows, table(rows) + "\n" + texts(rows))
    save_plot(arguments.results, "real_model", plot(rows))


def smollm2(output: Path) -> str:
    """The folder of the model, made where it is not there yet."""
    folder = output / "models" / "smollm2"
    subprocess.run([sys.executable, HERE.parent / "tools" / "smollm2.py", folder], check=True)
    return str(folder.absolute())


def job_of(study: str, team: str, seed: int, model: str, tasks: int, output: Path) -> Job:
    run = settings_of(study, team, seed, model, output)
    return Job(run, tasks, {"study": study, "team": team}, ("base", "last"), ("sampled", "greedy"), samples=SAMPLES)


def settings_of(study: str, team: str, seed: int, model: str, output: Path) -> RunSettings:
    """A study's recipe; for ``single``, the agent that answers alone, with the tokens of both."""
    table: dict[str, Any] = tomllib.loads((HERE / "real" / f"{study}.toml").read_text(encoding="utf-8"))
    table |= {
        "name": f"{study}-{team}-{seed}",
        "seed": seed,
        "output": str(output),
        "recipe_folder": str(HERE / "real"),
    }
    table["models"]["base"]["path"] = model
    if team == "single":
        (alone,) = (agent for agent in table["agents"] if agent.get("answers"))
        tokens = sum(agent["sampling"]["max_new_tokens"] for agent in table["agents"])
        table["agents"] = [{**alone, "instructions": "Do what is asked for.", "sampling": {"max_new_tokens": tokens}}]
        table["policies"] = {alone["policy"]: table["policies"][alone["policy"]]}
    return parse_recipe(table)


def describe(row: Row) -> str:
    gains = ", ".join(f"{mode} {row['before'][mode]:.0%} → {row['after'][mode]:.0%}" for mode in ("sampled", "greedy"))
    return f"{row['study']:12s} {row['team']:6s} seed {row['seed']}: {gains}"


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| task | agents | before, sampled | 95 % over seeds | after | 95 % over seeds | greedy before | after "
        "| seconds a step |",
        "| --- | --- | ---: | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for study, team, mine in _groups(rows):
        steps = sum(len(row["episodes"]) for row in mine)
        means = {
            (when, mode): f"{np.mean([row[when][mode] for row in mine]):.1%}"
            for when in ("before", "after")
            for mode in ("sampled", "greedy")
        }
        cells = [
            study, "one" if team == "single" else "two", means["before", "sampled"], interval(mine, "before"),
            means["after", "sampled"], interval(mine), means["before", "greedy"], means["after", "greedy"],
            f"{sum(row['seconds'] for row in mine) / steps:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def texts(rows: Sequence[Row]) -> str:
    """What the first seed's agents said, before and after."""
    lines = []
    for row in rows:
        if row["seed"] == 0 and row["team"] == "team":
            for before, after in zip(row["samples"]["before"], row["samples"]["after"], strict=True):
                lines += [f"**{row['study']}**: {before['observation']!r}", ""]
                for when, episode in (("before", before), ("after", after)):
                    said = "; ".join(f"{action['agent']}: {action['text']!r}" for action in episode["actions"])
                    lines.append(f"- {when} ({episode['reward']:g}): {said}")
                lines.append("")
    return "\n".join(lines)


def plot(rows: Sequence[Row]) -> Figure:
    """Reward while training: the mean over seeds and the band from lowest to highest."""
    studies = list(dict.fromkeys(row["study"] for row in rows))
    figure = Figure(figsize=(4 * len(studies), 3.2), layout="constrained")
    for axes, study in zip(figure.subplots(1, len(studies), squeeze=False)[0], studies, strict=True):
        for of_study, team, mine in _groups(rows):
            if of_study == study:
                band(axes, [row["curves"]["reward"] for row in mine], "one agent" if team == "single" else "two agents")
        axes.set_title(f"{study}: reward", fontsize=10, loc="left")
        axes.set_xlabel("training step (64 episodes each)", fontsize=8)
        axes.legend(frameon=False, fontsize=8)
        tidy(axes)
    return figure


def _groups(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    for study in dict.fromkeys(row["study"] for row in rows):
        for team in TEAMS:
            if mine := [row for row in rows if (row["study"], row["team"]) == (study, team)]:
                yield study, team, mine


if __name__ == "__main__":
    main()
