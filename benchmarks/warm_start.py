"""Compare a team that imitated its own right answers with the untuned one.

    python benchmarks/warm_start.py

The untuned demo team plays training tasks. Its conversations with the right answer are written as JSON lines of
messages, as any program could write them. The code of `marft sft` learns from that file. Both teams are then evaluated
on the same held-out tasks. Writes results/warm_start.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import machine

from marft.agents.game import Attempt
from marft.cli.handlers import silence_transformers
from marft.common.types import Episode
from marft.config import RunSettings, load_recipe
from marft.envs.tasks import read_tasks
from marft.evaluation.checkpoint_results import format_interval, format_percent
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.rollout.local_runner import open_rollout_runner
from marft.runs.run_folder import RunFolder
from marft_serve.traces.warm_start import warm_start

SFT = {"sft.learning_rate": 1e-3, "sft.batch_tokens": 4096, "sft.epochs": 4, "checkpoints.every": 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=512, help="number of attempts, each at another training task")
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks per evaluation")
    parser.add_argument("--output", type=Path, default=Path("runs/warm_start"))
    given = parser.parse_args()
    silence_transformers()
    given.output.mkdir(parents=True, exist_ok=True)
    traces = given.output / "traces.jsonl"
    demo = load_recipe("demo", changes={"output": str(given.output), "name": "warm"})
    kept = write(traces, played(demo, given.attempts))
    run = load_recipe(
        "demo", changes={"output": str(given.output), "name": "warm", "sft.traces": [str(traces.resolve())], **SFT}
    )
    folder = RunFolder(given.output / "warm")
    began = time.perf_counter()
    done = warm_start(run, folder, overwrite=True)
    seconds = time.perf_counter() - began
    found = evaluate_checkpoints(
        run, folder, EvaluationPlan(("base", "last"), ("greedy", "sampled"), given.tasks), lambda _=None: None
    )
    rows = [{"team": e.checkpoint, "mode": e.mode, "accuracy": e.accuracy, "interval": e.interval} for e in found]
    row: dict[str, Any] = {
        "machine": machine.describe(), "attempts": given.attempts, "right": kept, "steps": done.steps,
        "held_out_loss": done.held_out_loss, "seconds_of_imitation": seconds, "tasks": given.tasks, "sft": SFT,
        "rows": rows,
    }  # fmt: skip
    machine.save("warm_start", row)
    print(f"{kept} of {given.attempts} conversations were right; {done.steps} steps in {seconds:.0f} s")
    for one in found:
        print(
            f"{one.checkpoint:>12} {one.mode:>8}  {format_percent(one.accuracy)}  "
            f"({format_interval(one.interval, format_percent)})"
        )


def played(run: RunSettings, attempts: int) -> list[Episode]:
    """Return the untuned team's episodes on training tasks, sampled."""
    tasks = read_tasks(run.environment, "train")[:attempts]
    with open_rollout_runner(run) as rollouts:
        return rollouts.play([Attempt(task, "warm start") for task in tasks])


def write(path: Path, episodes: Iterable[Episode]) -> int:
    """Write the right episodes as conversations, one per line; return their number."""
    lines = []
    for episode in episodes:
        if episode.success:
            said = [{"role": "assistant", "name": a.agent, "content": a.text} for a in episode.actions]
            lines.append({"messages": [{"role": "user", "content": episode.task.prompt}, *said]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return len(lines)


if __name__ == "__main__":
    main()
