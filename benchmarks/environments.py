"""Train a team in each world, and one agent with the same model at equal tokens, over three seeds.

    python benchmarks/environments.py                        # every world: several nights; resumes
    python benchmarks/environments.py --worlds relay sudoku --seeds 1
    python benchmarks/environments.py --only-table           # from stored results

The team uses each world's bundled recipe. The single agent (``<world>_single``) trains until it has sampled as many
tokens as the team. Checkpoints are evaluated on the same held-out tasks, sampled as in training. The table pools all
seeds, untuned and trained: the mean, and Wilson's interval of accuracy over all episodes. For a reward, the interval is
that of its mean. Writes results/worlds/WORLD.json and .svg, and results/environments.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import machine
from matplotlib.figure import Figure

from marft.config import load_recipe
from marft.evaluation.intervals import mean_interval, wilson_interval
from marft.evaluation.session import EvaluationPlan, evaluate_checkpoints
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

POINTS = 5  # evaluated checkpoints of a run
ALONE = "_single"
COLOURS = {"team": "C0", "alone": "C1"}


class World(NamedTuple):
    """Measurements of one world.

    Args:
        recipe: recipe of the team. The single agent's recipe has the suffix ``_single``.
        measure: reported result: the share of solved tasks, or the reward.
        alone: True to train a single agent too.
        changes: overrides of the recipe.
    """

    recipe: str
    measure: Literal["accuracy", "reward"] = "accuracy"
    alone: bool = True
    changes: tuple[str, ...] = ()


WORLDS: Mapping[str, World] = {
    "chain_sum": World("demo"),
    "relay": World("relay"),
    "plan_path": World("plan_path"),
    "sudoku": World("sudoku"),
    "sokoban": World("sokoban"),
    "rooms": World("rooms"),
    "shop": World("shop", "reward"),
    "memory": World("memory", "reward"),
    "tool_use": World("tool_use"),
    "instructions": World("instructions"),
    "code": World("code"),
}
ARM = Literal["team", "alone"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=COLOURS, default=list(COLOURS))
    parser.add_argument("--tasks", type=int, default=300, help="held-out tasks per evaluation")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 uses all cores")
    parser.add_argument("--output", type=Path, default=Path("runs/environments"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument("--only-table", action="store_true", help="only write the table, from stored results")
    arguments = parser.parse_args()
    for world in arguments.worlds if not arguments.only_table else ():
        for seed in arguments.seeds:
            for arm in arguments.arms:
                if arm == "team" or WORLDS[world].alone:
                    measure(world, WORLDS[world], arm, seed, arguments)
    (arguments.results / "environments.md").write_text("\n".join(table(arguments.results / "worlds")) + "\n")
    print("\n".join(table(arguments.results / "worlds")))


def measure(world: str, settings: World, arm: ARM, seed: int, arguments: argparse.Namespace) -> None:
    """Train one run, evaluate its checkpoints, and add it to the world's results."""
    path = arguments.results / "worlds" / f"{world}.json"
    key = f"{arm}-{seed}"
    if key in _read(path).get("runs", {}):
        return
    folder = trained(world, settings, arm, seed, arguments)
    points = curve(folder, arguments.tasks)
    rows = folder.read_metrics()
    told = {
        name: [row.get(name) for row in rows]
        for name in rows[-1]
        if name.endswith(("/message_information", "/hidden_entropy"))
    }
    found = _read(path)
    one = {"seconds": sum(row["seconds"] for row in rows), "curve": points, **({"told": told} if told else {})}
    runs = {**found.get("runs", {}), key: one}
    whole = {"machine": machine.describe(), "measure": settings.measure, "runs": dict(sorted(runs.items()))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    plot(world, whole).savefig(path.with_suffix(".svg"))


def trained(world: str, settings: World, arm: ARM, seed: int, arguments: argparse.Namespace) -> RunFolder:
    """Train a run of a world, resuming it. The single agent trains until it has sampled as many tokens as the team."""
    recipe = settings.recipe + (ALONE if arm == "alone" else "")
    steps = load_recipe(settings.recipe, settings.changes).training.steps
    budget = 0.0
    if arm == "alone":
        rows = trained(world, settings, "team", seed, arguments).read_metrics()
        budget = sum(map(sampled, rows))
    every = max(1, steps // POINTS)
    while True:
        run = load_recipe(recipe, [
            *settings.changes, "--output", str(arguments.output), "--name", f"{world}-{arm}-{seed}",
            "--seed", str(seed), "--training.steps", str(steps), "--checkpoints.every", str(every),
            "--checkpoints.keep_last", "1000", "--threads", str(arguments.threads), "--sinks", "[]",
            "--device", "cpu", "--evaluation.every", "0",
        ])  # fmt: skip
        path = Path(run.output) / run.name
        begun = path.exists()
        folder = RunFolder.open(path) if begun else RunFolder.create(run)
        if len(folder.read_metrics()) < steps:
            train(run, folder, resume=begun)
        taken = sum(map(sampled, folder.read_metrics()))
        if taken >= budget:
            return folder
        steps += max(every, round(steps * (budget - taken) / taken))


def sampled(row: Mapping[str, Any]) -> float:
    """Return the number of tokens sampled in a step."""
    return float(row["actions"] * row["action_length"])


def curve(folder: RunFolder, tasks: int) -> list[dict[str, Any]]:
    """Evaluate the base and some checkpoints on held-out tasks, with the tokens sampled up to each."""
    rows, run = folder.read_metrics(), load_recipe(folder.config_path)
    saved = [path.name for path in folder.saved_steps()]
    chosen = sorted({saved[round(place * (len(saved) - 1) / (POINTS - 1))] for place in range(POINTS)})
    found = evaluate_checkpoints(run, folder, EvaluationPlan(["base", *chosen], ("sampled",), tasks), lambda *_: None)
    points = []
    for one in found:
        step = 0 if one.checkpoint == "base" else int(one.checkpoint.rpartition("_")[2])
        tokens = sum(map(sampled, rows[:step]))
        solved = sum(map(float, one.outcomes.values()))
        values = [value for _, value in sorted(one.rewards.items())]
        points.append({"step": step, "tokens": tokens, "solved": solved, "tasks": len(values), "rewards": values})
    return points


def pooled(runs: Sequence[Mapping[str, Any]], place: int, measure: str) -> tuple[float, tuple[float, float]]:
    """Return the mean over all seeds at one point of the curve, with its 95 % interval."""
    points = [run["curve"][place] for run in runs]
    if measure == "accuracy":
        solved, tasks = (round(sum(point[name] for point in points)) for name in ("solved", "tasks"))
        return solved / tasks, wilson_interval(solved, tasks)
    values = [value for point in points for value in point["rewards"]]
    mean = sum(values) / len(values)
    return mean, mean_interval(values) or (mean, mean)


def table(folder: Path) -> list[str]:
    """Return a line per world and arm."""
    head = ["world", "", "seeds", "untuned", "trained", "apart", "tokens sampled", "minutes a run"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: |"]
    for path in sorted(folder.glob("*.json")):
        found = _read(path)
        for arm in COLOURS:
            runs = [run for key, run in found["runs"].items() if key.startswith(arm)]
            if not runs:
                continue
            (before, low), (after, high) = (pooled(runs, place, found["measure"]) for place in (0, -1))
            tokens = sum(run["curve"][-1]["tokens"] for run in runs) / len(runs)
            minutes = sum(run["seconds"] for run in runs) / len(runs) / 60
            apart = "yes" if low[1] < high[0] else "no"
            name = f"[{path.stem}](worlds/{path.stem}.svg)" if arm == "team" else ""
            cells = [name, arm, str(len(runs)), _shown(before, low), _shown(after, high), apart, f"{tokens:,.0f}"]
            lines.append(f"| {' | '.join([*cells, f'{minutes:.0f}'])} |")
    return lines


def plot(world: str, found: Mapping[str, Any]) -> Figure:
    """Plot the result over sampled tokens: a line per seed, a mark per checkpoint.

    If messages carry hidden information, a second panel shows its bits by step.
    """
    told = {key: run["told"] for key, run in found["runs"].items() if "told" in run}
    figure = Figure(figsize=(9.6 if told else 5.2, 3.4), layout="constrained")
    axes, *beside = figure.subplots(1, 2 if told else 1, squeeze=False)[0]
    for key, run in found["runs"].items():
        arm = key.partition("-")[0]
        values = [_value(point, found["measure"]) for point in run["curve"]]
        label = None if any(line.get_label() == arm for line in axes.lines) else arm
        axes.plot(
            [p["tokens"] for p in run["curve"]], values, color=COLOURS[arm], marker="o", ms=3, lw=1.2, label=label
        )
    axes.set(title=world, xlabel="tokens sampled", ylabel=f"held-out {found['measure']}", ylim=(None, None))
    axes.grid(alpha=0.3)
    axes.legend()
    for other in beside:
        for run in told.values():
            for name, values in run.items():
                dashed = name.endswith("entropy")
                other.plot(range(1, len(values) + 1), values, color="C7" if dashed else "C2", ls=":" if dashed else "-")
        other.set(title="what messages tell (dotted: all there is)", xlabel="step", ylabel="bits", ylim=(0, None))
        other.grid(alpha=0.3)
    return figure


def _value(point: Mapping[str, Any], measure: str) -> float:
    return float(point["solved"] if measure == "accuracy" else sum(point["rewards"])) / float(point["tasks"])


def _shown(value: float, interval: tuple[float, float]) -> str:
    """Format a value with its interval.

    >>> _shown(0.5, (0.4, 0.6))
    '0.500 (0.400 to 0.600)'
    """
    return f"{value:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


if __name__ == "__main__":
    main()
