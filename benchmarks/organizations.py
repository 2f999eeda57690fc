"""Train a router that learns which worker to call, and a team that passes records instead of prose.

    python benchmarks/organizations.py                  # both studies; resumes
    python benchmarks/organizations.py --studies router --seeds 1

*router*: an orchestrated team with two workers. Each solves nine in ten tasks of its own kind, and one in ten of the
other. Only the router is trained. *records*: the demo team, with four forms of the reasoner's message. They are prose,
a record of the remaining state, and this record in words that the actor knows. The words are a sentence, or the end of
the reasoner's own sentence. Writes results/organizations_<study>.json, .md and .svg.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
from matplotlib.figure import Figure
from recording import Job, Row, band, interval, measure, parser_of, save_plot, save_rows, tidy

from marft.common.types import JointAction, Observation, Step, Task
from marft.config import load_recipe
from marft.config.interfaces.environment import Environment, Split
from marft.config.load import parse_recipe
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder

KINDS = ("red", "blue")
GOOD, BAD = 0.9, 0.1  # rate at which a worker solves tasks of its own kind, and of the other
RECIPE = "demo"
STATE = r"name = 'record', fields = { state = 'leaving (.+)\.' }"
CHANNELS = {
    "prose": "{ name = 'raw' }",
    "record": f"{{ {STATE} }}",
    "sentence": f"{{ {STATE}, template = 'The problem is {{state}}.' }}",
    "clause": f"{{ {STATE}, template = ', leaving {{state}}.' }}",
}


class Boxes(Environment):
    """Environment with tasks of two kinds. The reward depends on whether the called worker fits the kind."""

    def tasks(self, split: Split) -> list[Task]:
        place = ("train", "validation", "test").index(split)
        return [_box(number, Random(number).choice(KINDS)) for number in range(3000) if number % 3 == place]

    def start(self, task: Task, seed: int) -> BoxSession:
        return BoxSession(task, Random(seed))


def _box(number: int, kind: str) -> Task:
    return Task(f"box/{number}", f"Open {kind} box {number}.", {"kind": kind})


class BoxSession:
    def __init__(self, task: Task, random: Random) -> None:
        self.task, self.luck = task, random.random()

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        worker = actions.answer.agent if actions.answer else ""
        solved = self.luck < (GOOD if worker == self.task.data["kind"] else BAD)
        return Step(Observation("done"), float(solved), terminated=True, success=solved)

    async def close(self) -> None:
        return None


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--studies", default="router,records")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    for study in arguments.studies.split(","):
        jobs_of, table, plot = STUDIES[study]
        jobs = [job for seed in range(arguments.seeds) for job in jobs_of(seed, arguments.tasks, arguments.output)]
        rows = measure(jobs, arguments.workers, describe)
        if study == "router":
            rows = [{**row, "right": chance_of_the_right_one(job)} for job, row in zip(jobs, rows, strict=True)]
        save_rows(arguments.results, f"organizations_{study}", rows, table(rows))
        save_plot(arguments.results, f"organizations_{study}", plot(rows))


def describe(row: Row) -> str:
    return f"{row['case']:8s} seed {row['seed']}: {row['before']['sampled']:.1%} → {row['after']['sampled']:.1%}"


def routers(seed: int, tasks: int, output: Path) -> list[Job]:
    workers = [{"role": kind, "policy": "worker", "sampling": {"max_new_tokens": 4}} for kind in KINDS]
    run = parse_recipe(
        {
            "name": f"router-{seed}", "seed": seed, "output": str(output / "organizations"),
            "models": {"base": {"path": "tiny"}},
            "policies": {"router": {"model": "base"}, "worker": {"model": "base", "train": "frozen"}},
            "agents": [
                {"role": "router", "policy": "router", "instructions": "Call a worker.", "answers": True}, *workers,
            ],
            "team": {"organization": "orchestrated", "max_calls": 1},
            "environment": {"name": "organizations:Boxes"},
            "algorithm": {"name": "marft", "optimizer": {"learning_rate": 5e-4}},
            "rollout": {"tasks_per_step": 16, "samples_per_task": 4}, "training": {"steps": 30},
        }
    )  # fmt: skip
    return [Job(run, tasks, {"case": "router"}, ("base", "last"))]


def chance_of_the_right_one(job: Job) -> list[float]:
    """Return the router's probability of calling the right worker, averaged over each recorded step."""
    folder, chances = RunFolder(Path(job.run.output) / job.run.name), []
    for path in folder.recorded_steps():
        of_step = []
        for episode in read_episodes(path):
            choice = episode.actions[0].choice
            assert choice is not None
            of_step.append(float(np.exp(choice.log_probs[KINDS.index(episode.task.prompt.split()[1])])))
        chances.append(float(np.mean(of_step)))
    return chances


def router_table(rows: Sequence[Row]) -> str:
    lines = [
        "| | before | after | 95 % interval over seeds |", "| --- | ---: | ---: | --- |",
        f"| chance of the right worker | {np.mean([r['right'][0] for r in rows]):.1%} "
        f"| {np.mean([r['right'][-1] for r in rows]):.1%} | |",
        f"| tasks solved, held out (at best {GOOD:.0%}) | {np.mean([r['before']['sampled'] for r in rows]):.1%} "
        f"| {np.mean([r['after']['sampled'] for r in rows]):.1%} | {interval(rows)} |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def router_plot(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    band(axes, [row["right"] for row in rows], "chance of the right worker")
    band(axes, [row["curves"]["accuracy"] for row in rows], "tasks solved")
    axes.set_xlabel("training step (64 episodes each)")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    tidy(axes)
    return figure


def records(seed: int, tasks: int, output: Path) -> list[Job]:
    where = ["--seed", str(seed), "--output", str(output / "organizations")]
    return [
        Job(
            load_recipe(RECIPE, [*where, "--name", f"{case}-{seed}", "--channel", channel]), tasks, {"case": case},
            ("base", "last"),
        )
        for case, channel in CHANNELS.items()
    ]  # fmt: skip


def record_table(rows: Sequence[Row]) -> str:
    titles = [
        "messages",
        "before",
        "after: mean",
        "95 % interval over seeds",
        "message tokens an episode, before",
        "after",
    ]
    lines = [f"| {' | '.join(titles)} |", "| --- | ---: | ---: | --- | ---: | ---: |"]
    for case in CHANNELS:
        mine = [row for row in rows if row["case"] == case]
        before, after = (float(np.mean([row[when]["sampled"] for row in mine])) for when in ("before", "after"))
        spent = [float(np.mean([row["curves"]["message_tokens"][place] for row in mine])) for place in (0, -1)]
        lines.append(f"| {case} | {before:.1%} | {after:.1%} | {interval(mine)} | {spent[0]:.1f} | {spent[1]:.1f} |")
    return "\n".join(lines) + "\n"


def record_plot(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), ("accuracy", "message_tokens"), strict=True):
        for case in CHANNELS:
            band(axes, [row["curves"][metric] for row in rows if row["case"] == case], case)
        axes.set_title(metric.replace("_", " "), fontsize=10, loc="left")
        axes.set_xlabel("training step (64 episodes each)", fontsize=8)
        axes.legend(frameon=False)
        tidy(axes)
    return figure


STUDIES = {"router": (routers, router_table, router_plot), "records": (records, record_table, record_plot)}

if __name__ == "__main__":
    main()
