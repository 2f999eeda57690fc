"""Check that guards name planted failures of the demo team, and stay silent in clean runs.

    python benchmarks/guards.py --first-seed 300         # all studies, as in the results; resumes
    python benchmarks/guards.py --only collapse,returned # some studies; keeps the stored rows of the others

Planted failures:

- `collapse`: a learning rate a hundred times too high. `returned` also rolls back automatically.
- `hack`: a reward term with a loophole that pays for quoting the task.
- `collusion`: a reward term that grades against a lost key, so that the answering agent can ignore its input.
- `regression`: noise instead of an adapter after training. `marft compare --fail-if` must name it.

`clean` and `clean_token` are the unchanged demo, on seeds that no threshold was chosen on. Accuracy is that of a run's
last five steps. Writes results/guards.json and .md.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recording import Row, parser_of, save_rows, stored_rows

from marft.cli.evaluation import EvaluationOptions, evaluate
from marft.cli.handlers import silence_transformers
from marft.config import load_recipe, to_toml
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.evaluation.guards.monitor import GUARDS, replay_messages
from marft.rollout.local_runner import open_rollout_runner
from marft.runs.checkpoints import CheckpointManager, restore
from marft.runs.metrics_log import LogDigest
from marft.runs.run_folder import RunFolder
from marft.runs.state import read_record
from marft.trainer.learner import Learner
from marft.trainer.train import train

LEARNING_RATE = 5e-4  # as in the demo
HOT = {"algorithm.optimizer.learning_rate": 100 * LEARNING_RATE}
HACK = [
    {"name": "outcome", "weight": 0.25},
    {"name": "function", "call": "guards_terms:quotes"},
]
LOST_KEY = [{"name": "function", "call": "guards_terms:digits_of_a_lost_key"}]
STUDIES: dict[str, dict[str, Any]] = {
    "clean": {},
    "collapse": HOT,
    "returned": {**HOT, "guards.on_collapse": "rollback"},
    "hack": {"rewards": HACK},
    "collusion": {
        "rewards": LOST_KEY,
        "algorithm.optimizer.learning_rate": 2 * LEARNING_RATE,
        "training.steps": 40,
    },
    "clean_token": {},
}
RECIPES = {"clean_token": "demo_token"}
SEEDS = {"clean": 5, "returned": 3, "collusion": 3, "clean_token": 2}
TEXT = Path(__file__).parents[1] / "LICENSE"  # no task contains this text
NOISY = ("reasoner", "actor")
GATES = (
    "accuracy < -5%", "agents.reasoner.message_tokens > +10%", "agents.reasoner.message_tokens < -10%",
)  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default=",".join([*STUDIES, "regression"]))
    parser.add_argument("--first-seed", type=int, default=0, help="rules were chosen on 0 to 4, 101, 102, 200 to 204")
    parser.add_argument(
        "--seeds",
        type=int,
        help="seeds per study; default: 5 for clean, 3 for returned and collusion, 2 for clean_token, 1 for others",
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--name", default="guards", help="file name of the results")
    given = parser.parse_args()
    silence_transformers()
    only, output = given.only.split(","), given.output / given.name
    rows = []
    for study in (study for study in STUDIES if study in only):
        for seed in range(given.first_seed, given.first_seed + (given.seeds or SEEDS.get(study, 1))):
            rows.append(trained(study, seed, given.steps, output))
            print(study, seed, f"{rows[-1]['accuracy']:.1%}", rows[-1]["raised"], flush=True)
    if "regression" in only:
        rows += [regression(output, given.first_seed, given.tasks, agent) for agent in NOISY]
    done = {row["study"] for row in rows}
    rows += [row for row in stored_rows(given.results, given.name) if row["study"] not in done]
    order = [*STUDIES, *(f"noise_{agent}" for agent in NOISY)]
    rows.sort(key=lambda row: (order.index(row["study"]), row["seed"]))
    save_rows(given.results, given.name, rows, markdown(rows))


def trained(study: str, seed: int, steps: int, output: Path) -> Row:
    """Train a run to its end, resuming it; return each raised guard with its first step."""
    changes = {"output": str(output), "name": f"{study}-{seed}", "seed": seed, "training.steps": steps}
    changes |= {"threads": 1, "checkpoints.every": 10, "guards.held_out_text.path": str(TEXT)}
    run = load_recipe(RECIPES.get(study, "demo"), changes={**changes, **STUDIES[study]})
    folder = RunFolder(output / run.name)
    started = folder.config_path.exists()
    if started and folder.config_path.read_text(encoding="utf-8") != to_toml(run):
        raise SystemExit(f"{folder.path} was trained with other settings; delete it, or use another --output")
    if not started or len(folder.read_metrics()) < run.training.steps:
        train(run, folder, resume=started)
    metrics, first = folder.read_metrics(), dict[str, int]()
    for step in metrics:
        for guard in GUARDS:
            if step.get(f"guards/{guard.name}"):
                first.setdefault(guard.name, step["step"])
    return {
        "study": study,
        "seed": seed,
        "steps": len(metrics),
        "accuracy": float(np.mean([step["accuracy"] for step in metrics[-run.guards.window :]])),
        "raised": first,
        "returns": [[step["step"], step[ROLLBACK_KEY]] for step in metrics if ROLLBACK_KEY in step],
        "said": replay_messages(run.guards, metrics),
        "wall_seconds": sum(step["seconds"] for step in metrics),
    }


def regression(output: Path, seed: int, tasks: int, agent: str) -> Row:
    """Replace an agent's adapter in the clean team by noise, and compare both teams with the command of a CI pipeline.

    The noise has the standard deviation of the weights.
    """
    began, clean, noisy = time.perf_counter(), output / f"clean-{seed}", output / f"noisy-{agent}-{seed}"
    if not (clean / "checkpoints").is_dir():
        raise SystemExit(f"{clean} is missing; run --only clean first")
    shutil.rmtree(noisy, ignore_errors=True)
    run = load_recipe(RunFolder(clean).config_path, changes={"name": noisy.name})
    with open_rollout_runner(run) as rollouts:
        learner = Learner(run, rollouts.models)
        checkpoints = CheckpointManager(RunFolder(clean), run.checkpoints)
        state = restore(read_record(checkpoints.find("last")), rollouts.models, learner)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in learner.optimizers[agent].parameters.values():
                parameter.copy_(torch.randn_like(parameter) * parameter.std())
        CheckpointManager(RunFolder.create(run), run.checkpoints).save(
            state, run, rollouts.models, learner, LogDigest.from_content(b"")
        )
    for folder in (clean, noisy):
        evaluate([folder], [], EvaluationOptions(["last"], mode="sampled", tasks=tasks))
    command = [sys.executable, "-m", "marft", "compare", str(clean), str(noisy)]
    command += [word for gate in GATES for word in ("--fail-if", gate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith(("failed", "passed"))]
    row = {"study": f"noise_{agent}", "seed": seed, "tasks": tasks, "exit": done.returncode, "said": said}
    return {**row, "wall_seconds": time.perf_counter() - began}


def markdown(rows: list[Row]) -> str:
    lines = [
        "Accuracy: mean of the last five steps. Raised: each guard with its first step.",
        "",
        "| study | seed | accuracy | raised | goes back |",
        "| --- | --- | --- | --- | --- |",
    ]
    runs = [row for row in rows if "raised" in row]
    for row in runs:
        raised = ", ".join(f"{name} {step}" for name, step in row["raised"].items()) or "nothing"
        backs = ", ".join(f"after {step:.0f} to {to:.0f}" for step, to in row["returns"]) or "–"
        lines.append(f"| {row['study']} | {row['seed']} | {row['accuracy']:.1%} | {raised} | {backs} |")
    for row in rows:
        if "exit" in row:
            lines += ["", f"`{row['study']}`, seed {row['seed']}: `marft compare` exits with {row['exit']}.", ""]
            lines += [f"- {sentence}" for sentence in row["said"]]
    lines += ["", "Messages:", ""]
    lines += [f"- {row['study']}, seed {row['seed']}: {sentence}" for row in runs for sentence in row["said"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
