"""Count the real episodes until a team crosses the frozen lake in 90 % of attempts, with and without imagined episodes.

    python benchmarks/dyna.py
    python benchmarks/dyna.py --seeds 0 --arms plain dyna

The observation is the number of the cell. The arms differ in the episodes of a training step:

- ``recipe``, ``plain``, ``few``: 64, 16 or 4 real episodes. Fewer episodes per step give more updates per episode.
- ``replay``: 16 real episodes, each used in four steps.
- ``dyna``: 4 real and 60 imagined episodes. Imagined episodes begin where real ones do.
- ``anywhere``: like ``dyna``, but imagined episodes begin anywhere.
- ``corrupted``: like ``dyna``, but after 600 environment steps the model inverts rewards and shuffles next
  observations. The run may disable the model.
- ``unwatched``: like ``corrupted``, but the model stays enabled.

An arm reaches the goal when at least 90 % of its last 64 real episodes cross. These are training episodes, sampled
from the policies. Interrupted runs resume, and stored results are not measured again. Writes results/dyna.json, .md
and .svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import machine
from matplotlib.figure import Figure
from pydantic import PrivateAttr
from recording import save_plot, save_rows, stored_rows

from marft.common.callbacks import Callback
from marft.config import load_recipe
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_lab.world_models.counts import CountModel
from marft_lab.world_models.interface import History, ObservedTransition, Outcome, Prediction, WorldModel

EPISODES = 5120  # maximum real episodes of a run
WINDOW, ENOUGH = 64, 0.9
WORLD = (  # cells as numbers, which the tiny model learns faster than the drawing; half of the recipe's learning rate
    "--environment.rendering", "words", "--algorithm.optimizer.learning_rate", "1e-3",
)  # fmt: skip
SIXTEEN = ("--rollout.tasks_per_step", "1")
FOUR = (*SIXTEEN, "--rollout.samples_per_task", "4")
IMAGINED = (  # as long as real ones; one observation is enough (e⁻¹ = 0.37), because this world is deterministic
    *FOUR, "--dyna.share", "0.9375", "--dyna.horizon", "8", "--dyna.max_uncertainty", "0.5",
)  # fmt: skip
ARMS = {
    "recipe": (),
    "plain": SIXTEEN,
    "few": FOUR,
    "replay": (*SIXTEEN, "--rollout.reuse", "4"),
    "dyna": IMAGINED,
    "anywhere": (*IMAGINED, "--dyna.start_from", "anywhere"),
    "corrupted": (*IMAGINED, "--dyna.model", "{ name = 'dyna:Corrupted' }"),
    "unwatched": (*IMAGINED, "--dyna.model", "{ name = 'dyna:Corrupted' }", "--dyna.auto_disable", "false"),
}
ALONE = ("recipe", "plain", "few")  # the best of these per seed is the baseline for imagined episodes


class Corrupted(CountModel):
    """Count model that inverts rewards and shuffles next observations after a number of environment steps."""

    after: int = 600  # environment steps before the corruption
    _turned: bool = PrivateAttr(default=False)

    def fit(self, transitions: Sequence[ObservedTransition], seed: int) -> WorldModel:
        model = super().fit(transitions, seed)
        self._turned |= len(transitions) >= self.after
        if not self._turned:
            return model
        return Wrong(model, sorted({one.outcome.next_observation for one in transitions}))


@dataclass(frozen=True, slots=True)
class Wrong:
    """World model that returns another place and the inverted reward."""

    model: WorldModel
    places: Sequence[str]

    def predict(self, history: History, action: str) -> Prediction:
        said = self.model.predict(history, action)
        return replace(said, outcomes=tuple(map(self._other, said.outcomes)))

    def _other(self, outcome: Outcome) -> Outcome:
        place = self.places[(self.places.index(outcome.next_observation) + 1) % len(self.places)]
        return replace(outcome, next_observation=place, reward=1.0 - outcome.reward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--episodes", type=int, default=EPISODES, help="maximum real episodes of a run")
    parser.add_argument("--output", type=Path, default=Path("runs/dyna"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    rows = stored_rows(arguments.results, "dyna")
    known = {(row["arm"], row["seed"]) for row in rows if row["changes"] == changes_of(row["arm"])}
    rows = [row for row in rows if (row["arm"], row["seed"]) in known]
    for seed, arm in product(arguments.seeds, arguments.arms):
        if (arm, seed) not in known:
            rows.append(measured(trained(arguments.output, arm, seed, arguments.episodes), arm, seed))
            print(json.dumps({key: value for key, value in rows[-1].items() if key != "curve"}), flush=True)
            rows.sort(key=lambda row: (row["seed"], list(ARMS).index(row["arm"])))
            save_rows(arguments.results, "dyna", rows, "\n".join(table_of(rows)) + "\n")
            save_plot(arguments.results, "dyna", plot(rows))


def changes_of(arm: str) -> list[str]:
    """Return an arm's changes to the recipe. Stored results with other changes are dropped."""
    return [*WORLD, *ARMS[arm]]


def trained(output: Path, arm: str, seed: int, episodes: int) -> RunFolder:
    """Train one run until it reaches the goal or the maximum of real episodes."""
    where = (
        "--output",
        str(output),
        "--name",
        f"{arm}-{seed}",
        "--seed",
        str(seed),
        "--sinks",
        "[]",
        "--device",
        "cpu",
    )
    rest = ["--training.record_credit", "false", *changes_of(arm)]
    per_step = load_recipe("frozen_lake", rest).rollout
    steps = episodes // (per_step.tasks_per_step * per_step.samples_per_task)
    run = load_recipe("frozen_lake", [*where, "--training.steps", str(steps), *rest])
    path = Path(run.output) / run.name
    begun = path.exists()
    folder = RunFolder.open(path) if begun else RunFolder.create(run)
    observer = UntilThere(folder)
    if not observer.wants_stop() and len(folder.read_metrics()) < run.training.steps:
        train(run, folder, resume=begun, callbacks=[observer])
    return folder


class UntilThere(Callback):
    """Callback that stops a run at its goal."""

    def __init__(self, folder: RunFolder) -> None:
        self._rows = list(folder.read_metrics())

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        self._rows.append(metrics)

    def wants_stop(self) -> bool:
        return arrived(crossed(self._rows)) is not None


def crossed(rows: Sequence[Mapping[str, float]]) -> list[tuple[int, float]]:
    """Return the real episodes so far, and the share of the last 64 that crossed, after each step.

    Before there are 64 episodes, missing ones count as failures.
    """
    per_step = [row["episodes"] for row in rows]
    solved = [row["reward"] * row["episodes"] for row in rows]
    curve = []
    for end in range(1, len(rows) + 1):
        start = end
        while start and sum(per_step[start:end]) < WINDOW:
            start -= 1
        curve.append((int(sum(per_step[:end])), sum(solved[start:end]) / max(sum(per_step[start:end]), WINDOW)))
    return curve


def arrived(curve: Sequence[tuple[int, float]]) -> int | None:
    """Return the real episodes until the goal; None if it was not reached."""
    return next((episodes for episodes, share in curve if share >= ENOUGH), None)


def measured(folder: RunFolder, arm: str, seed: int) -> dict[str, Any]:
    """Return the figures of one run."""
    rows = list(folder.read_metrics())
    curve = crossed(rows)
    off = [row["step"] for row in rows if row.get("imagined/enabled") == 0.0]
    return {
        "arm": arm, "seed": seed, "changes": changes_of(arm), "arrived": arrived(curve),
        "played": curve[-1][0], "last": curve[-1][1],
        "steps": len(rows), "imagined": sum(row.get("imagined/episodes", 0.0) for row in rows),
        "cut": sum(row.get("imagined/rejected", 0.0) for row in rows), "off": off[0] if off else None,
        "off_steps": len(off), "wall_seconds": sum(row["seconds"] for row in rows),
        "curve": [point for point in curve if point[0] % WINDOW == 0 or point is curve[-1]],
    }  # fmt: skip


def table_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per arm with its figures over seeds.

    A run that missed the goal counts with all its episodes, shown as a lower bound (``>``).
    """
    lines = [
        "| arm | arrived | real episodes, median | of the seeds | than alone | steps, median | imagined | cut off | "
        "switched off in step | seconds |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | --- | ---: |",
    ]
    alone = dict[int, int]()
    for row in rows:
        if row["arm"] in ALONE:
            alone[row["seed"]] = min(took(row), alone.get(row["seed"], took(row)))
    for arm in ARMS:
        mine = [row for row in rows if row["arm"] == arm]
        if not mine:
            continue
        each = ", ".join(str(row["arrived"] or f">{row['played']}") for row in mine)
        ratios = [alone[row["seed"]] / took(row) for row in mine if row["seed"] in alone and arm not in ALONE]
        fewer = f"{median(ratios):.2f}× fewer ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        off = ", ".join(str(row["off"] or "–") for row in mine) if any(row["imagined"] for row in mine) else ""
        there = sum(row["arrived"] is not None for row in mine)
        lines.append(
            f"| {arm} | {there} of {len(mine)} | {median(map(took, mine)):.0f} | {each} | {fewer} "
            f"| {median(row['steps'] for row in mine):.0f} "
            f"| {median(row['imagined'] for row in mine):.0f} | {median(row['cut'] for row in mine):.0f} | {off} "
            f"| {median(row['wall_seconds'] for row in mine):.0f} |"
        )
    return lines


def took(row: Mapping[str, Any]) -> int:
    """Return the number of real episodes until the goal, or all of them."""
    return int(row["arrived"] or row["played"])


def plot(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot the share of crossings over real episodes, a line per run."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes, named = figure.subplots(), set[str]()
    for row in rows:
        color, label = f"C{list(ARMS).index(row['arm'])}", "" if row["arm"] in named else row["arm"]
        named.add(row["arm"])
        axes.plot(*zip(*row["curve"], strict=True), color=color, alpha=0.8, lw=1.2, label=label or None)
    axes.axhline(ENOUGH, color="grey", lw=0.8, ls=":")
    axes.set_xlabel("real episodes")
    axes.set_ylabel("of the last 64, those that cross")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
