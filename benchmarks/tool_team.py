"""Train a team of SmolLM2 that looks facts up with parallel tool calls, as a program behind the gateway.

    python benchmarks/tool_team.py                  # three seeds; creates the model first
    python benchmarks/tool_team.py --seeds 0 --steps 2 --tasks 8

The team first imitates demonstrations, half of them with a mistake (SFT), then learns by reinforcement. It is evaluated
on the same held-out tasks untuned, after SFT, and after training. Writes results/tool_team.json and .md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
from real import lookup

from marft.cli.handlers import silence_transformers
from marft.common.types import Episode
from marft.config import RunSettings, load_recipe
from marft.evaluation.intervals import wilson_interval
from marft.evaluation.session import EvaluationPlan, StorageOptions, evaluate_checkpoints
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_serve.traces.warm_start import warm_start

HERE = Path(__file__).parent
RECIPE, TEMPLATE = HERE / "real" / "lookup.toml", HERE / "calculator.jinja"
DEMONSTRATIONS = 96  # training tasks with a demonstration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="training steps; 0 uses the recipe's")
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks per evaluation")
    parser.add_argument("--model", help="folder of SmolLM2; without it, tools/smollm2.py creates one")
    parser.add_argument("--output", type=Path, default=Path("runs/tool_team"))
    given = parser.parse_args()
    silence_transformers()
    if not given.model:
        given.model = str(given.output / "smollm2")
        subprocess.run([sys.executable, HERE.parent / "tools" / "smollm2.py", given.model], check=True)
    rows = list[dict[str, Any]]()
    for seed in given.seeds:
        rows.append(of_seed(seed, given))
        result = {"machine": machine.describe(), "tasks": given.tasks, "rows": rows}
        machine.save("tool_team", result)
        (machine.RESULTS / "tool_team.md").write_text(table(rows, given.tasks), encoding="utf-8")
        print(table(rows, given.tasks))


def of_seed(seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train with one seed; return the success rates and the shares of turns with parallel calls."""
    demonstrations = given.output / f"demonstrations-{seed}.jsonl"
    demonstrations.parent.mkdir(parents=True, exist_ok=True)
    tasks = lookup.Lookup().tasks("train")[:DEMONSTRATIONS]
    lines = [json.dumps(row) for row in lookup.demonstrate(tasks, seed)]
    demonstrations.write_text("\n".join(lines) + "\n", encoding="utf-8")
    taught = RunFolder(given.output / f"taught-{seed}")
    imitate = _run(given, seed, taught.path.name, {"sft.traces": [str(demonstrations.resolve())]})
    warm_start(imitate, taught, overwrite=True)
    trained = RunFolder(given.output / f"trained-{seed}")
    run = _run(given, seed, trained.path.name)
    train(run, trained, start_from=taught.saved_steps()[-1], overwrite=True)
    recorded = list(trained.recorded_steps())
    return {
        "seed": seed,
        "untuned": solved(imitate, taught, "base", given),
        "taught": solved(imitate, taught, "last", given),
        "trained": solved(run, trained, "last", given),
        "parallel": [share_of_parallel_calls(list(read_episodes(step))) for step in (recorded[0], recorded[-1])],
        "seconds": [row["seconds"] for row in trained.read_metrics()],
    }


def solved(run: RunSettings, folder: RunFolder, checkpoint: str, given: argparse.Namespace) -> float:
    """Return the success rate on held-out tasks, sampled."""
    plan = EvaluationPlan((checkpoint,), ("sampled",), given.tasks)
    storage = StorageOptions(folder.evaluations)
    (found,) = evaluate_checkpoints(run, folder, plan, lambda _=None: None, storage=storage)
    return found.accuracy or 0.0


def share_of_parallel_calls(episodes: Sequence[Episode]) -> float:
    """Return the share of the researcher's first turns with two valid calls."""
    first = [next((a for a in episode.actions if a.agent == "researcher"), None) for episode in episodes]
    return sum(a is not None and sum(not call.error for call in a.calls) >= 2 for a in first) / len(first)


def table(rows: Sequence[Mapping[str, Any]], tasks: int) -> str:
    """Return a line per seed."""
    lines = [
        "| seed | untuned | after SFT | after training | parallel calls, first step | last step | seconds a step |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = [f"{row[key]:.0%} {between(row[key], tasks)}" for key in ("untuned", "taught", "trained")]
        cells += [f"{share:.0%}" for share in row["parallel"]]
        seconds = sum(row["seconds"]) / len(row["seconds"])
        lines.append(f"| {row['seed']} | {' | '.join(cells)} | {seconds:.1f} |")
    return "\n".join(lines) + f"\n\nSuccess on {tasks} held-out tasks, sampled, with Wilson's 95 % interval.\n"


def between(rate: float, tasks: int) -> str:
    low, high = wilson_interval(round(rate * tasks), tasks)
    return f"({low:.0%} to {high:.0%})"


def _run(
    given: argparse.Namespace, seed: int, name: str, changes: Mapping[str, Any] = {}
) -> RunSettings:  # fmt: skip
    paths = {"models.base.path": given.model, "models.base.chat_template": str(TEMPLATE), "output": str(given.output)}
    steps = {"training.steps": given.steps} if given.steps else {}
    return load_recipe(RECIPE, changes={**paths, "name": name, "seed": seed, **steps, **changes})


if __name__ == "__main__":
    main()
