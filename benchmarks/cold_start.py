"""Compare reinforcement only, SFT only, and both, for a team that solves almost nothing.

    python benchmarks/cold_start.py              # three seeds; resumes
    python benchmarks/cold_start.py --steps 24

The recipe is cold_start.toml. The script of its world plays training tasks. `marft synthesize` keeps the episodes that
are worth imitating, `marft sft` imitates them, and `marft train` continues from there. In the arm without SFT,
`marft train` starts from the untuned team, with as many steps and episodes. All teams are evaluated on the same
held-out tasks. Writes results/cold_start.json and .md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine

from marft.cli.handlers import silence_transformers
from marft.config import RunSettings, load_recipe
from marft.evaluation.intervals import wilson_interval
from marft.evaluation.session import EvaluationPlan, StorageOptions, evaluate_checkpoints
from marft.runs.run_folder import RunFolder, resolve_start
from marft.trainer.train import train
from marft_lab.synthesis.session import synthesize
from marft_serve.traces.reader import MANIFEST, ROWS_FOLDER
from marft_serve.traces.warm_start import warm_start

RECIPE = Path(__file__).with_name("cold_start.toml")
ARMS = {
    "untuned": "untuned", "alone": "reinforcement alone", "sft": "supervised start alone",
    "both": "supervised start, then reinforcement",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--steps", type=int, default=0, help="training steps of both reinforcement arms; 0 uses the recipe's"
    )
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks per evaluation")
    parser.add_argument("--output", type=Path, default=Path("runs/cold_start"))
    given = parser.parse_args()
    silence_transformers()
    rows = list[dict[str, Any]]()
    for seed in given.seeds:
        rows += of_seed(seed, given)
        print(save(rows, given))


def save(rows: Sequence[Mapping[str, Any]], given: argparse.Namespace) -> str:
    """Write the results so far, and return their table."""
    run = _run(given, 0, "cold")
    row: dict[str, Any] = {
        "machine": machine.describe(), "tasks": given.tasks, "steps": run.training.steps,
        "episodes_a_step": run.rollout.tasks_per_step * run.rollout.samples_per_task, "rows": rows,
    }  # fmt: skip
    machine.save("cold_start", row)
    text = "\n".join(table(rows)) + "\n"
    (machine.RESULTS / "cold_start.md").write_text(text, encoding="utf-8")
    return text


def of_seed(seed: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all arms with one seed, and return their rows."""
    made = RunFolder(given.output / f"rows-{seed}")
    manifest = made.path / ROWS_FOLDER / MANIFEST
    if not manifest.is_file():
        synthesize(_run(given, seed, made.path.name), made, resume=made.is_run())
    funnel = json.loads(manifest.read_text(encoding="utf-8"))
    imitated = RunFolder(given.output / f"sft-{seed}")
    resume, _, overwrite = resolve_start(imitated, None)
    run = _run(given, seed, imitated.path.name, {"sft.traces": [str(made.path.resolve())]})
    warm_start(run, imitated, resume=resume, overwrite=overwrite)
    found = [_solved("sft", seed, imitated, "last", given)]
    for arm, source in (("both", imitated.saved_steps()[-1]), ("alone", None)):
        folder = RunFolder(given.output / f"{arm}-{seed}")
        resume, start, overwrite = resolve_start(folder, source)
        train(_run(given, seed, folder.path.name), folder, resume=resume, start_from=start, overwrite=overwrite)
        found.append(_solved(arm, seed, folder, "last", given))
    rows = [_solved("untuned", seed, folder, "base", given), *found]
    return [{**row, "rows": funnel["rows"], "funnel": funnel["funnel"]} if row["arm"] == "sft" else row for row in rows]


def _solved(arm: str, seed: int, folder: RunFolder, checkpoint: str, given: argparse.Namespace) -> dict[str, Any]:
    """Evaluate a checkpoint on held-out tasks, and return its row."""
    (one,) = evaluate_checkpoints(
        _run(given, seed, folder.path.name),
        folder,
        EvaluationPlan((checkpoint,), ("sampled",), given.tasks),
        lambda _=None: None,
        storage=StorageOptions(folder.evaluations),
    )
    print(f"{ARMS[arm]}, seed {seed}: {one.accuracy:.3f}", flush=True)
    return {"arm": arm, "seed": seed, "solved": round(sum(map(float, one.outcomes.values()))), "of": len(one.outcomes)}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per arm: the share of solved held-out tasks, over all seeds and per seed.

    >>> table([{"arm": "sft", "seed": 0, "solved": 50, "of": 100}])[-1]
    '| supervised start alone | 50.0 % (40.4 to 59.6) | 50.0 % |'
    """
    lines = ["| team | solved, sampled | by seed |", "| --- | ---: | --- |"]
    for arm, name in ARMS.items():
        mine = [row for row in rows if row["arm"] == arm]
        if mine:
            solved, of = (sum(row[key] for row in mine) for key in ("solved", "of"))
            low, high = wilson_interval(solved, of)
            each = ", ".join(f"{100 * row['solved'] / row['of']:.1f} %" for row in mine)
            lines.append(f"| {name} | {100 * solved / of:.1f} % ({100 * low:.1f} to {100 * high:.1f}) | {each} |")
    return lines


def _run(
    given: argparse.Namespace, seed: int, name: str, changes: Mapping[str, Any] = {}
) -> RunSettings:  # fmt: skip
    steps = {"training.steps": given.steps} if given.steps else {}
    return load_recipe(RECIPE, changes={"output": str(given.output), "name": name, "seed": seed, **steps, **changes})


if __name__ == "__main__":
    main()
