"""Train the example teams of other frameworks: whether they learn, and whether every example trains.

    python benchmarks/frameworks.py                    # teams that learn: 60 steps, three seeds, in this environment
    python benchmarks/frameworks.py --two-steps        # two steps of every example; creates their environments

Install their packages with ``pip install --constraint constraints.txt -e '.[frameworks]'``. CrewAI and AutoGen have
environments of their own (``--environments``), which the first call creates. Writes results/frameworks.json, .md and
.svg, and results/frameworks_two_steps.json and .md.
"""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import numpy as np
from matplotlib.figure import Figure
from recording import Job, Row, band, interval, measure, parser_of, save_plot, save_rows, tidy

from marft.config import RunSettings, load_recipe
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

EXAMPLES = Path(__file__).parents[1] / "examples"
LEARNING = {"langgraph": "LangGraph: supervisor and worker", "openai_agents": "OpenAI Agents SDK: handoff and tool"}
SEEDS = 3


@dataclass(frozen=True)
class Framework:
    """An example, and the packages of its own environment. Without packages, it runs in MARFT's environment."""

    title: str
    packages: Sequence[str] = ()


ALL: Mapping[str, Framework] = {
    "langgraph": Framework("LangGraph"),
    "openai_agents": Framework("OpenAI Agents SDK"),
    "pydantic_ai": Framework("PydanticAI"),
    "crewai": Framework("CrewAI", ("crewai==1.15.30",)),
    "autogen": Framework("AutoGen", ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5")),
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--two-steps", action="store_true", help="two training steps of every example")
    parser.add_argument("--environments", type=Path, default=Path("runs/frameworks/environments"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.set_defaults(tasks=200)
    arguments = parser.parse_args()
    output = arguments.output / "frameworks"
    if arguments.two_steps:
        rows = [two_steps(name, output, arguments.environments) for name in ALL]
        save_two_steps(arguments.results, rows)
        return
    jobs = [job_of(name, seed, arguments.tasks, output) for seed in range(arguments.seeds) for name in LEARNING]
    rows = measure(jobs, arguments.workers, describe)
    save_rows(arguments.results, "frameworks", rows, table(rows))
    save_plot(arguments.results, "frameworks", plot(rows))


def job_of(name: str, seed: int, tasks: int, output: Path) -> Job:
    run = load_recipe(
        EXAMPLES / name / "recipe.toml",
        ["--output", str(output), "--name", f"{name}-{seed}", "--seed", str(seed), "--device", "cpu"],
    )
    return Job(run, tasks, {"framework": name}, ("base", "last"), ("sampled", "greedy"))


def describe(row: Row) -> str:
    return f"{row['framework']} seed {row['seed']}: {row['before']['sampled']:.1%} → {row['after']['sampled']:.1%}"


def table(rows: Sequence[Row]) -> str:
    """Return a line per framework."""
    lines = [
        "| team | seeds | before, sampled | after: mean | 95 % over seeds | worst seed | greedy before | after "
        "| seconds a step |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, title in LEARNING.items():
        mine = [row for row in rows if row["framework"] == name]
        if not mine:
            continue
        means = {
            (when, mode): f"{np.mean([row[when][mode] for row in mine]):.1%}"
            for when in ("before", "after")
            for mode in ("sampled", "greedy")
        }
        steps = sum(len(row["episodes"]) for row in mine)
        cells = [
            title, str(len(mine)), means["before", "sampled"], means["after", "sampled"], interval(mine),
            f"{min(row['after']['sampled'] for row in mine):.1%}", means["before", "greedy"], means["after", "greedy"],
            f"{sum(row['seconds'] for row in mine) / steps:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row]) -> Figure:
    """Plot accuracy during training: the mean over seeds, with a band from minimum to maximum."""
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, title in LEARNING.items():
        mine = [row["curves"]["accuracy"] for row in rows if row["framework"] == name]
        if mine:
            band(axes, mine, title)
    axes.set_xlabel("training step (64 episodes each)", fontsize=8)
    axes.set_title("accuracy, sampled", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return figure


def two_steps(name: str, output: Path, environments: Path) -> Row:
    """Train an example for two steps of four episodes; return the outcomes and the cost."""
    changes = ["--output", str(output), "--name", f"two-steps-{name}", "--device", "cpu", "--training.steps", "2"]
    changes += ["--rollout.tasks_per_step", "2", "--rollout.samples_per_task", "2"]
    if packages := ALL[name].packages:
        changes += ["--team.python", str(python_with(packages, environments / name))]
    run = load_recipe(EXAMPLES / name / "recipe.toml", changes)
    folder = RunFolder(Path(run.output) / run.name)
    train(run, folder, overwrite=True)
    row = what_happened(run, folder)
    print(f"{ALL[name].title}: {row['ended']}, {row['calls']} calls, {row['seconds_a_step']:.1f} s a step", flush=True)
    return {"framework": name, "packages": list(packages), **row}


def what_happened(run: RunSettings, folder: RunFolder) -> dict[str, Any]:
    """Count episodes by outcome, actions by agent, and tool calls that could be parsed."""
    episodes = [episode for step in folder.recorded_steps() for episode in read_episodes(step)]
    actions = [action for episode in episodes for action in episode.actions]
    ended = [episode.status for episode in episodes]
    return {
        "ended": {status: ended.count(status) for status in sorted(set(ended))},
        "actions": {agent.role: sum(action.agent == agent.role for action in actions) for agent in run.agents},
        "calls": sum(len(action.calls) for action in actions),
        "seconds_a_step": float(np.mean([row["seconds"] for row in folder.read_metrics()])),
    }


def python_with(packages: Sequence[str], folder: Path) -> Path:
    """Return the Python of an environment with these packages; create the environment if it is missing."""
    python, mark = folder.absolute() / "bin" / "python", folder / "made-of.txt"
    if not mark.is_file() or mark.read_text().split() != list(packages):
        print(f"installing {' '.join(packages)} to {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        mark.write_text("\n".join(packages) + "\n")
    return python


def save_two_steps(results: Path, rows: Sequence[Row]) -> None:
    lines = ["| team of | episodes | actions | calls of tools | seconds a step |", "| --- | --- | --- | ---: | ---: |"]
    for row in rows:
        ended = ", ".join(f"{count} {status}" for status, count in row["ended"].items())
        actions = ", ".join(f"{role} {count}" for role, count in row["actions"].items())
        title = ALL[row["framework"]].title
        lines.append(f"| {title} | {ended} | {actions} | {row['calls']} | {row['seconds_a_step']:.1f} |")
    results.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine.describe(), "rows": list(rows)}
    (results / "frameworks_two_steps.json").write_text(json.dumps(whole, indent=2) + "\n")
    (results / "frameworks_two_steps.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
