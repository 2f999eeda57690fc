"""Ablate how two worlds are learned: other groups, other credit, and trained policies in each other's seats.

    python benchmarks/world_ablations.py                      # runs what is missing; resumes
    python benchmarks/world_ablations.py --only memory --seeds 0

On ``plan_path``, the tree of candidates (AT-GRPO: Stronger-MAS, arXiv:2510.11062) compares candidates of one state, of
one agent at all its turns, or of all agents at one turn. Then the two trained policies swap seats. On ``memory``,
CoMAM's credit (arXiv:2603.12631) with local rewards is compared with the team's reward alone, under GRPO. All teams are
evaluated by the share of tasks that they solve. Writes results/world_ablations.json and .md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
from environments import World, curve, pooled, trained

from marft.config import load_recipe
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.session import evaluate_team

TREE = ("--algorithm.name", "at-grpo", "--rollout.samples_per_task", "1")
ARMS: Mapping[str, Mapping[str, World]] = {
    "plan_path": {
        "marft, as the recipe": World("plan_path"),
        "by agent and turn (a state's candidates)": World("plan_path", changes=TREE),
        "by agent alone": World("plan_path", changes=(*TREE, "--algorithm.credit.group_by", "agent")),
        "by turn alone": World("plan_path", changes=(*TREE, "--algorithm.credit.group_by", "turn")),
    },
    "memory": {
        "comam, with local rewards": World("memory"),
        "grpo, the team's reward alone": World(
            "memory", changes=("--algorithm.name", "grpo", "--environment.local_weight", "0")
        ),
    },
}
ON_THE_WAY = 2  # index of the intermediate checkpoint
SWAPPED = "plan_path"  # world whose first two arms also swap policies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", type=int, default=300, help="held-out tasks per evaluation")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 uses all cores")
    parser.add_argument("--output", type=Path, default=Path("runs/environments"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    path = arguments.results / "world_ablations.json"
    for world in arguments.only:
        for number, (name, settings) in enumerate(ARMS[world].items()):
            for seed in arguments.seeds:
                found = _read(path)
                key = f"{world}/{name}/{seed}"
                if key not in found:
                    run = world if number == 0 else f"{world}-{number}"
                    one = measured(run, settings, seed, arguments, swap=world == SWAPPED and number < 2)
                    path.write_text(json.dumps({**found, "machine": machine.describe(), key: one}, indent=2) + "\n")
    lines = table(_read(path))
    (arguments.results / "world_ablations.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def measured(run: str, settings: World, seed: int, arguments: argparse.Namespace, swap: bool) -> dict[str, Any]:
    """Return a run's curve, and the accuracy with swapped policies."""
    folder = trained(run, settings, "team", seed, arguments)
    found: dict[str, Any] = {"curve": curve(folder, arguments.tasks)}
    if swap:
        options = ComparisonOptions(only=("swap",), tasks=arguments.tasks, cross_checkpoints=("last",))
        rows = evaluate_team(load_recipe(folder.config_path), folder, options, lambda *_: None).rows
        found["swapped"] = {row.name: row.values["accuracy"].value for row in rows}
    return found


def table(found: Mapping[str, Any]) -> list[str]:
    """Return a line per arm: untuned, on the way, trained, and with swapped policies."""
    head = ["world", "", "seeds", "untuned", "on the way", "trained", "policies swapped"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for world, arms in ARMS.items():
        for name in arms:
            runs = [one for key, one in found.items() if key.startswith(f"{world}/{name}/")]
            if runs:
                before, way, after = (pooled(runs, place, "accuracy") for place in (0, ON_THE_WAY, -1))
                steps = runs[0]["curve"][ON_THE_WAY]["step"]
                swapped = [value for run in runs for row, value in run.get("swapped", {}).items() if "swapped" in row]
                mean = f"{sum(swapped) / len(swapped):.0%}" if swapped else ""
                cells = [world, name, str(len(runs)), _shown(*before), f"{way[0]:.0%} (step {steps})", _shown(*after)]
                cells += [mean]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def _shown(value: float, interval: Sequence[float]) -> str:
    return f"{value:.0%} ({interval[0]:.0%} to {interval[1]:.0%})"


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


if __name__ == "__main__":
    main()
