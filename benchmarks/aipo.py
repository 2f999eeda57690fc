r"""Measure what an agent learns from helpers that are available only during training (AIPO).

    python benchmarks/aipo.py                          # five seeds of each arm; resumes
    python benchmarks/aipo.py --seeds 1 --arms aipo grpo

A solver computes ``f1(23, 45)`` by rules that no prompt states (``unknown_rules.py``). Training and held-out tasks are
those that the untuned solver failed in all of 64 attempts. During training, the solver may ask a frozen model that
knows the rules, in one of two attempts at a task. From half of the steps on, ever fewer attempts may ask, and the last
steps have no helper. GRPO has no helpers and twice the steps, so that its solver samples at least as many tokens.
*Plain weight* is π/μ without a cap; *no clip* leaves out cap and clip. Each other arm changes one setting. Settings
were chosen on seed 0. Writes results/aipo.json, .md and .svg.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import unknown_rules
from matplotlib.figure import Figure
from recording import Job, Row, band, interval, measure, parser_of, save_plot, save_rows, tidy
from warm_up import digest, warm_up

from marft.agents.game import Attempt
from marft.config.load import parse_recipe
from marft.config.models import ModelSettings
from marft.config.run import RunSettings
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import Mode
from marft.rollout.local_runner import open_rollout_runner
from marft.runs.run_folder import RunFolder

MODES: tuple[Mode, ...] = ("sampled", "greedy")
ATTEMPTS = 64  # attempts of the untuned model per task; all must fail
POOL = {"train": 120, "test": 120}  # candidate tasks
WARM_UP = {"model": 500, "helper": 400}  # steps
STEPS, ANNEAL_START, ANNEAL_END = 120, 60, 100
COEFFICIENT = 1.0
UNBOUNDED = 1e9
Arm = Mapping[str, Any]
ARMS: Mapping[str, Arm] = {
    "aipo": {},
    "grpo": {"consulting": None, "steps": 2 * STEPS},
    "replies masked": {"teammate_text": {"coefficient": 0.0}},
    "plain weight": {"teammate_text": {"weight": {"name": "truncated", "cap": UNBOUNDED}}},
    "no clip": {"teammate_text": {"weight": {"name": "bounded", "cap": UNBOUNDED, "clip": 1.0}}},
    "no weight": {"teammate_text": {"weight": {"name": "unweighted"}}},
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--only-table", action="store_true", help="only write the table, from finished runs")
    arguments = parser.parse_args()
    output = arguments.output / "aipo"
    made = {which: output / which for which in WARM_UP}
    for which, demonstrate in (("model", unknown_rules.of_the_model), ("helper", unknown_rules.of_the_helper)):
        if not made[which].exists():
            output.mkdir(parents=True, exist_ok=True)
            warm_up(made[which], ModelSettings(path="tiny"), demonstrate, WARM_UP[which])
    hard = unsolved(output, made)
    jobs = [
        Job(
            recipe(arm, seed, output, made, hard), arguments.tasks, {"case": arm, "checkpoint": digest(made["model"])},
            ("base", "last"), MODES, curves=("accuracy", "helper_calls", "teammate_weight", "kl"),
        )
        for seed in range(arguments.seeds)
        for arm in arguments.arms
    ]  # fmt: skip
    if arguments.only_table:
        jobs = [job for job in jobs if job.path.exists()]
    rows = measure(jobs, arguments.workers, describe)
    rows = [{**row, "own_tokens": own_tokens(job.run)} for job, row in zip(jobs, rows, strict=True)]
    save_rows(arguments.results, "aipo", rows, table(rows))
    save_plot(arguments.results, "aipo", plot(rows))


def name_of(arm: str, seed: int) -> str:
    return f"{arm.replace(' ', '-')}-{seed}"


def recipe(arm: str, seed: int, output: Path, made: Mapping[str, Path], hard: Path | None) -> RunSettings:
    """Return the recipe of one arm."""
    changes = ARMS[arm]
    helper = {"policy": "helper", "context": [], "sampling": {"max_new_tokens": 32, "temperature": 1.0}}
    consulting = {
        "helpers": {kind: {**helper, "instructions": text} for kind, text in unknown_rules.HELPERS.items()},
        "budget": 0.5, "anneal_start": ANNEAL_START, "anneal_end": ANNEAL_END, "visible": "never",
        "call_template": unknown_rules.CALL, "reply_template": unknown_rules.REPLY,
    }  # fmt: skip
    helped = "consulting" not in changes
    models = {"base": {"path": str(made["model"])}} | ({"helper": {"path": str(made["helper"])}} if helped else {})
    policies: dict[str, Any] = {"solver": {"model": "base", "train": "full"}}
    if helped:
        policies["helper"] = {"model": "helper", "train": "frozen"}
    text = {"coefficient": COEFFICIENT if helped else 0.0, **changes.get("teammate_text", {})}
    return parse_recipe(
        {
            "name": name_of(arm, seed), "seed": seed, "output": str(output), "models": models, "policies": policies,
            "agents": [
                {
                    "role": "solver", "policy": "solver", "instructions": unknown_rules.SOLVER,
                    "sampling": {"max_new_tokens": 128},
                }
            ],
            "environment": {
                "name": "unknown_rules:Functions", "train_tasks": POOL["train"], "held_out_tasks": POOL["test"],
                "only": str(hard or ""),
            },
            "algorithm": {"name": "aipo", "teammate_text": text, "optimizer": {"learning_rate": 2e-4}},
            "rollout": {"tasks_per_step": 8, "samples_per_task": 8}, "training": {"steps": changes.get("steps", STEPS)},
            "checkpoints": {"every": 20},
            **({"consulting": consulting} if helped else {}),
        }
    )  # fmt: skip


def unsolved(output: Path, made: Mapping[str, Path]) -> Path:
    """Return a file with the ids of the tasks that the untuned model never solves; create it if it is missing."""
    path = output / "unsolved.json"
    if not path.exists():
        run = recipe("grpo", 0, output, made, None)
        kept: list[str] = []
        with open_rollout_runner(run) as rollouts:
            for split in POOL:
                tasks = read_tasks(run.environment, split)  # type: ignore[arg-type]
                played = rollouts.play([Attempt(task, "untuned", n) for task in tasks for n in range(ATTEMPTS)])
                solved = {episode.task.id for episode in played if episode.success}
                kept += [task.id for task in tasks if task.id not in solved]
        path.write_text(json.dumps(kept))
    return path


def hard_counts(hard: Path) -> int:
    return len(json.loads(hard.read_text()))


def own_tokens(run: RunSettings) -> int:
    """Return the number of tokens that the solver itself sampled during training."""
    steps = RunFolder(Path(run.output) / run.name).read_metrics()
    return int(sum(step["action_length"] * step["actions"] for step in steps))


def describe(row: Row) -> str:
    return f"{row['case']} seed {row['seed']}: {row['before']['sampled']:.1%} → {row['after']['sampled']:.1%}"


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| arm | seeds | solved before, sampled | after, without helpers: sampled | 95 % interval over seeds | "
        "greedy | tokens of its own | questions |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        asked = np.mean([sum(filter(None, row["curves"]["helper_calls"])) for row in mine])
        solved = {
            (when, mode): np.mean([r[when][mode] for r in mine]) for when in ("before", "after") for mode in MODES
        }
        lines.append(
            f"| {case} | {len(mine)} | {solved['before', 'sampled']:.1%} | {solved['after', 'sampled']:.1%} | "
            f"{interval(mine)} | {solved['after', 'greedy']:.1%} | "
            f"{np.mean([row['own_tokens'] for row in mine]):,.0f} | {asked:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for case in dict.fromkeys(row["case"] for row in rows):
        band(axes, [[v or 0.0 for v in row["curves"]["accuracy"]] for row in rows if row["case"] == case], case)
    for step in (ANNEAL_START, ANNEAL_END):
        axes.axvline(step, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="training step", ylabel="solved, with what help there is", title="helpers leave between the lines")
    axes.legend(fontsize=8)
    tidy(axes)
    return figure


if __name__ == "__main__":
    main()
