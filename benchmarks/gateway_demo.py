"""Train the whole demo three times: with its recipe, as a program with an OpenAI client, and as a LangGraph graph.

    python benchmarks/gateway_demo.py                  # LangGraph needs: pip install -e '.[frameworks]'; else skipped
    python benchmarks/gateway_demo.py --steps 5 --tasks 40

All teams are evaluated on the same held-out tasks. The last adapters, the critics and every step's metrics, except for
times, are compared bit by bit. Runs use one thread, so that sums have one order. Writes results/gateway_demo.json and
.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import machine

from marft.config import load_recipe
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.runs.checkpoints import CheckpointManager
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM = "{{ organization = 'program', call = '{}' }}"
TEAMS = {
    "the recipe's chain": (),
    "a plain openai program": ("--team", PROGRAM.format("marft_serve.examples.openai_team:solve")),
    "a LangGraph graph": ("--team", PROGRAM.format("langgraph_team:solve")),
}
TIMES = (
    "second",
    "gateway/idle_timeouts",
    "workers_lost",
    "episodes_retried",
    "tasks_excluded",
)  # parts of the names of metrics that may differ
WEIGHTS = (
    "critic.safetensors",
    "policies/reasoner/adapter_model.safetensors",
    "policies/actor/adapter_model.safetensors",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="training steps; default: the demo's")
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks per evaluation")
    parser.add_argument("--output", type=Path, default=Path("runs/gateway_demo"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    sys.path.append(str(EXAMPLES / "langgraph"))
    folders: dict[str, RunFolder] = {}
    rows: list[dict[str, Any]] = []
    for name, changes in TEAMS.items():
        if "LangGraph" in name and not find_spec("langgraph"):
            continue
        began = time.perf_counter()
        folders[name] = trained(arguments.output / str(len(rows)), arguments.steps, changes)
        seconds = time.perf_counter() - began
        rows.append({"team": name, "seconds": seconds, **accuracies(folders[name], arguments.tasks)})
        rows[-1] |= differences(next(iter(folders.values())), folders[name])
        save(arguments.results, rows)


def trained(output: Path, steps: int | None, changes: tuple[str, ...]) -> RunFolder:
    """Train the demo from the beginning."""
    shutil.rmtree(output, ignore_errors=True)
    length = () if steps is None else ("--training.steps", str(steps))
    run = load_recipe("demo", ["--output", str(output), "--device", "cpu", "--threads", "1", *length, *changes])
    folder = RunFolder.create(run)
    train(run, folder)
    return folder


def accuracies(folder: RunFolder, tasks: int) -> dict[str, float | None]:
    """Return the greedy and sampled accuracy of the last checkpoint, played by its own team."""
    found = evaluate_checkpoints(
        folder.settings(), folder, EvaluationPlan(["last"], ("greedy", "sampled"), tasks), lambda *_: None
    )
    return {result.mode: result.accuracy for result in found}


def differences(one: RunFolder, other: RunFolder) -> dict[str, int]:
    """Count the weight files, and the steps with metrics, that differ between two runs."""
    last = [CheckpointManager(folder, folder.settings().checkpoints).find("last") for folder in (one, other)]
    files = sum((last[0] / name).read_bytes() != (last[1] / name).read_bytes() for name in WEIGHTS)
    rows = [list(timeless(folder)) for folder in (one, other)]
    return {"files": files, "steps": sum(a != b for a, b in zip(*rows, strict=True)), "of": len(rows[0])}


def timeless(folder: RunFolder) -> Iterator[Mapping[str, float]]:
    for row in folder.read_metrics():
        yield {name: value for name, value in row.items() if not any(part in name for part in TIMES)}


def save(results: Path, rows: list[dict[str, Any]]) -> None:
    lines = [
        "| the demo as | greedy | sampled | training | weights that differ | steps whose metrics differ |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['team']} | {row['greedy']:.1%} | {row['sampled']:.1%} | {row['seconds']:.0f} s "
        f"| {row['files']} of {len(WEIGHTS)} files | {row['steps']} of {row['of']} |"
        for row in rows
    ]
    results.mkdir(parents=True, exist_ok=True)
    (results / "gateway_demo.json").write_text(
        json.dumps({"machine": machine.describe(), "rows": rows}, indent=2) + "\n"
    )
    (results / "gateway_demo.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
