"""Train SmolLM2-135M-Instruct on three small tasks, as a team of two and as one agent at equal tokens.

    python benchmarks/real_model.py                          # creates the model first; resumes
    python benchmarks/real_model.py --studies sums --seeds 1
    python benchmarks/real_model.py --table                  # no training: the table of the stored rows
    OMP_NUM_THREADS=1 python benchmarks/real_model.py --workers 2
    python benchmarks/real_model.py --model Qwen/Qwen2.5-0.5B-Instruct --results elsewhere

Each agent has its own LoRA on all linear layers. The recipe fixes the number of steps beforehand. A run's row is stored
in results/real/<task>-<team|single>-<seed>.json. It is not measured again, on any machine, while the recipe and the
tasks stay the same. Writes results/real_model.md and .svg from the stored rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import numpy as np
from matplotlib.figure import Figure
from recording import Job, Row, band, interval, measure, parser_of, save_plot, tidy

from marft.config import parse_recipe
from marft.config.run import RunSettings
from marft.envs.tasks import read_tasks

HERE = Path(__file__).parent
STUDIES = ("sums", "instructions", "facts")
TEAMS = ("team", "single")
SMOLLM2 = "SmolLM2-135M-Instruct"
SAMPLES = 3  # tasks whose texts are stored
TASKS = 64  # held-out tasks per evaluation
ALONE = {  # instructions of the single agent
    "sums": "Add.",
    "instructions": "Shout! Use few words!",
    "facts": "Answer the question.",
}


@dataclass(frozen=True, slots=True)
class RealJob(Job):
    """Job whose row is the same on any machine, because it does not depend on paths."""

    rows: Path = Path()
    stated: str = field(default="", repr=False)  # the recipe as written, and the held-out tasks

    @property
    def recipe(self) -> str:
        return self.stated + repr((self.tasks, self.checkpoints, self.modes))

    @property
    def path(self) -> Path:
        return self.rows / f"{self.about['study']}-{self.about['team']}-{self.about['seed']}.json"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="", help="folder with SmolLM2, or hub id of another model")
    parser.add_argument("--table", action="store_true", help="train nothing; write the table of the stored rows")
    parser.set_defaults(tasks=TASKS)
    arguments = parser.parse_args()
    model = arguments.model or ("" if arguments.table else smollm2(arguments.output))
    jobs = [
        job_of(study, team, seed, model or SMOLLM2, arguments.tasks, arguments.output / "real", arguments.results)
        for seed in range(arguments.seeds)
        for study in arguments.studies.split(",")
        for team in TEAMS
    ]
    try:
        if not arguments.table:
            measure(jobs, arguments.workers, describe)
    finally:
        save(arguments.results, finished(jobs), len(jobs))


def finished(jobs: Sequence[Job]) -> list[Row]:
    """Return the stored rows of these recipes and tasks."""
    rows = [json.loads(job.path.read_text()) for job in jobs if job.path.is_file()]
    known = {job.digest for job in jobs}
    return [row for row in rows if row["digest"] in known]


def save(results: Path, rows: Sequence[Row], wanted: int) -> None:
    """Write ``real_model.md`` and ``.svg`` from the stored rows."""
    if not rows:
        return
    hours = sum(row["wall_seconds"] for row in rows) / 3600
    count = f"{len(rows)} of {wanted} runs, {hours:.1f} hours in total, on a shared machine.\n"
    results.mkdir(exist_ok=True, parents=True)
    (results / "real_model.md").write_text(f"{count}\n{table(rows)}\n{texts(rows)}")
    save_plot(results, "real_model", plot(rows))
    print(f"{count}\n{table(rows)}")


def smollm2(output: Path) -> str:
    """Return the folder of the model; create it if it is missing."""
    folder = output / "models" / "smollm2"
    subprocess.run([sys.executable, HERE.parent / "tools" / "smollm2.py", folder], check=True)
    return str(folder.absolute())


def job_of(study: str, team: str, seed: int, model: str, tasks: int, output: Path, results: Path) -> RealJob:
    written = table_of(study, team, seed)
    run = settings_of(written, model, output)
    held_out = [(task.id, task.prompt, task.data) for task in read_tasks(run.environment, "test")[:tasks]]
    about = {"study": study, "team": team, "seed": seed, "model": name_of(model), "machine": machine.describe()}
    return RealJob(
        run, tasks, about, ("base", "last"), ("sampled", "greedy"), samples=SAMPLES, shuffle_messages=team == "team",
        rows=results / "real", stated=json.dumps([name_of(model), written, held_out], sort_keys=True),
    )  # fmt: skip


def name_of(model: str) -> str:
    """Return a model's name, the same on any machine. A folder that tools/smollm2.py created holds SmolLM2."""
    return SMOLLM2 if (Path(model) / "made-of.sha256").is_file() else model


def table_of(study: str, team: str, seed: int) -> dict[str, Any]:
    """Return a study's recipe as written. ``single`` keeps only the answering agent, with the tokens of both."""
    table: dict[str, Any] = tomllib.loads((HERE / "real" / f"{study}.toml").read_text(encoding="utf-8"))
    table |= {"name": f"{study}-{team}-{seed}", "seed": seed}
    if team == "single":
        (alone,) = (agent for agent in table["agents"] if agent.get("answers"))
        tokens = sum(agent["sampling"]["max_new_tokens"] for agent in table["agents"])
        sampling = {**alone["sampling"], "max_new_tokens": tokens}
        table["agents"] = [{**alone, "instructions": ALONE[study], "sampling": sampling}]
        table["policies"] = {alone["policy"]: table["policies"][alone["policy"]]}
    return table


def settings_of(written: Mapping[str, Any], model: str, output: Path) -> RunSettings:
    models = {"base": {**written["models"]["base"], "path": model}}
    return parse_recipe({**written, "models": models, "output": str(output), "recipe_folder": str(HERE / "real")})


def describe(row: Row) -> str:
    gains = ", ".join(f"{mode} {row['before'][mode]:.0%} → {row['after'][mode]:.0%}" for mode in ("sampled", "greedy"))
    return f"{row['study']:12s} {row['team']:6s} seed {row['seed']}: {gains}"


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| task | agents | seeds | before, sampled | 95 % over seeds | after | 95 % over seeds | messages shuffled "
        "| greedy before | after | seconds a step |",
        "| --- | --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for study, team, mine in _groups(rows):
        steps = sum(len(row["episodes"]) for row in mine)
        means = {
            (when, mode): f"{np.mean([row[when][mode] for row in mine]):.1%}"
            for when in ("before", "after")
            for mode in ("sampled", "greedy")
        }
        without = f"{np.mean([row['shuffled'] for row in mine]):.1%}" if team == "team" else ""
        cells = [
            study, "one" if team == "single" else "two", str(len(mine)), means["before", "sampled"],
            interval(mine, "before"), means["after", "sampled"], interval(mine), without, means["before", "greedy"],
            means["after", "greedy"], f"{sum(row['seconds'] for row in mine) / steps:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def texts(rows: Sequence[Row]) -> str:
    """Return the messages of the first seed's agents, before and after."""
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
    """Plot reward during training: the mean over seeds, with a band from minimum to maximum."""
    studies = list(dict.fromkeys(row["study"] for row in rows))
    figure = Figure(figsize=(4 * len(studies), 3.2), layout="constrained")
    for axes, study in zip(figure.subplots(1, len(studies), squeeze=False)[0], studies, strict=True):
        for of_study, team, mine in _groups(rows):
            if of_study == study:
                band(axes, [row["curves"]["reward"] for row in mine], "one agent" if team == "single" else "two agents")
        axes.set_title(f"{study}: reward", fontsize=10, loc="left")
        axes.set_xlabel("training step (32 episodes each)", fontsize=8)
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
