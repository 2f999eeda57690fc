"""Measure flow networks in a planted workshop of twelve steps: learned paths, reworded instructions, and skips.

    python benchmarks/flows.py              # five seeds, about 40 seconds of one core each; resumes
    python benchmarks/flows.py --seeds 1

The network grows from what a team did by habit (17 % solved). *edges* learns its paths. *text* rewords its nodes, with
a critic that is right half of the time. *both* does one after the other. *skipped* does both, then skips nodes that
add nothing. Each network plays 400 test tasks of the same mix and 400 of another, and is compared with the best path,
which is known. Writes results/flows.json, .md and .svg (the network of the first seed).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flow_world
import machine
import numpy as np
from flow_world import ADVICE, HURRY, NEEDS, SEATS, SPOILS, Bench, PlantedCritic, Workshop, recipe, step_of
from recording import STUDENT, save_plot, save_rows

from marft.agents.game import Attempt
from marft.common import atomic
from marft_lab.flows.edge_policy import match_context
from marft_lab.flows.growth import GrowthOptions, grow_network
from marft_lab.flows.network import Change, FlowNetwork, read_network, write_network
from marft_lab.flows.plots import plot_network
from marft_lab.flows.tuning import (
    FlowEvaluator,
    PathLearningOptions,
    RewordingOptions,
    learn_paths,
    reword_nodes,
    skip_nodes,
)

CASES = ("grown", "edges", "text", "both", "skipped")
GROWTH = GrowthOptions(threshold=0.4, excluded_roles=frozenset({"router"}))
LEARNING = PathLearningOptions(steps=30, batch=128, rate=6.0)
IMPROVING = RewordingOptions(rounds=5, patience=4)
TOLERANCE = 0.01
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("runs/flows"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    rows = [row for seed in range(arguments.seeds) for row in measured(seed, arguments.output)]
    save_rows(arguments.results, "flows", rows, table(rows))
    save_plot(arguments.results, "flows", plot_network(read_network(arguments.output / "skipped-0.json")))


def measured(seed: int, output: Path) -> list[Row]:
    """Return the rows of a seed; measure and store them if they are missing."""
    path, settings = output / f"seed-{seed}.json", digest()
    if path.is_file():
        kept = json.loads(path.read_text())
        if kept["settings"] != settings:
            raise SystemExit(f"{path} was measured with other settings; delete it, or use another --output")
        return list(kept["rows"])
    began = time.perf_counter()
    rows = rows_of(seed, output)
    seconds = time.perf_counter() - began
    rows = [{**row, "wall_seconds": seconds / len(rows)} for row in rows]
    atomic.write_file(path, json.dumps({"settings": settings, "rows": rows}) + "\n")
    said = ", ".join(f"{row['case']} {row['same']:.1%}" for row in rows)
    print(f"seed {seed}: {said} ({seconds:.0f} s)", flush=True)
    return rows


def digest() -> str:
    """Return a digest of everything that the figures depend on."""
    world = Path(flow_world.__file__).read_bytes()
    return hashlib.sha256(world + repr((GROWTH, LEARNING, IMPROVING, TOLERANCE)).encode()).hexdigest()[:16]


def rows_of(seed: int, output: Path) -> list[Row]:
    run = recipe(seed, {"organization": "orchestrated", "max_calls": 6}, router=True)
    world = run.environment
    assert isinstance(world, Workshop)
    by_habit = Bench(run, world, flow_world.by_habit, ("router", *SEATS))
    train = world.tasks("train")
    network = grow_network(by_habit(run.team, [Attempt(task, "train/0") for task in train]), GROWTH)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.json"
        write_network(file, network)
        run = recipe(seed, {"organization": "flow", "network": str(file)}, router=False)
    play = Bench(run, world, flow_world.by_node, tuple(SEATS))
    board = FlowEvaluator(run.team, play, train, world.tasks("validation"), seed)  # type: ignore[arg-type]
    test = world.tasks("test")
    found = {"grown": network, "edges": learn_paths(board, network, LEARNING)}
    found["text"] = reword_nodes(board, network, PlantedCritic(seed), IMPROVING)
    found["both"] = reword_nodes(board, found["edges"], PlantedCritic(seed), IMPROVING)
    found["skipped"] = skip_nodes(board, found["both"], TOLERANCE)
    for case, one in found.items():
        write_network(output / f"{case}-{seed}.json", one)
    return [{"case": case, "seed": seed, **figures(board, found[case], test)} for case in CASES]


def figures(board: FlowEvaluator, network: FlowNetwork, test: Sequence[Any]) -> dict[str, object]:
    """Return a network's results on test tasks, and the counts of its critic's proposals."""
    solved = board.task_outcomes(network, test)
    named = {node.name: step_of(node.example) for node in network.nodes}
    paths = {
        task.id: [named[name] for name in board.active_nodes(network, match_context(network, task.prompt))]
        for task in test
    }
    kinds = {task.id: task.data["kind"] for task in test}
    mixes = {mix: [task.id for task in test if task.data["mix"] == number] for number, mix in enumerate(MIXES)}
    shares = {mix: float(np.mean([solved[task] for task in tasks])) for mix, tasks in mixes.items()}
    return {
        **shares,
        "nodes": len(network.nodes),
        "contexts": len(network.contexts),
        "right": float(np.mean([leads(paths[task], kinds[task]) for task in paths])),
        "best": float(np.mean([tuple(paths[task]) == NEEDS[kinds[task]] for task in paths])),
        "steps": float(np.mean([len(path) for path in paths.values()])),
        "proposals": proposals([change for change in network.lineage if change.kind == "instructions"], named),
    }


MIXES = ("same", "other")


def leads(path: Sequence[str], kind: str) -> bool:
    """Return True if a path has the steps that a kind of task needs, in order, and spoils nothing."""
    waiting = iter(path)
    return SPOILS not in path and all(step in waiting for step in NEEDS[kind])


def proposals(changes: Sequence[Change], named: Mapping[str, str]) -> dict[str, int]:
    """Count the proposals that help, harm or do nothing, and the accepted ones of each."""
    found = dict.fromkeys(("helps", "helps kept", "harms", "harms kept", "nothing", "nothing kept"), 0)
    for change in changes:
        words = change.after.removeprefix(change.before)
        told_already = ADVICE.get(named[change.node], "?") in change.before
        helps = ADVICE.get(named[change.node], "?") in words and not told_already
        what = "harms" if HURRY in words else "helps" if helps else "nothing"
        found[what] += 1
        found[f"{what} kept"] += change.kept
    return found


def table(rows: Sequence[Row]) -> str:
    columns = ("same", "other", "right", "best")
    lines = [
        "| network | solved, same mix | solved, another mix | a right path | the best path | steps |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case in CASES:
        mine = [row for row in rows if row["case"] == case]
        cells = [shown([row[column] for row in mine], 100, " %") for column in columns]
        lines.append(f"| {case} | {' | '.join([*cells, shown([row['steps'] for row in mine], 1, '')])} |")
    by = {case: {row["seed"]: row for row in rows if row["case"] == case} for case in CASES}
    seeds = sorted(by["both"])
    saved = [1 - by["skipped"][s]["steps"] / by["both"][s]["steps"] for s in seeds]
    lost = {mix: [by["both"][s][mix] - by["skipped"][s][mix] for s in seeds] for mix in MIXES}
    asked = [by["both"][s]["proposals"] for s in seeds]
    sums = {key: sum(one[key] for one in asked) for key in asked[0]}
    lines += [
        "",
        f"Means of {len(seeds)} seeds, and half the width of their 95 % interval (Student's t). Skipping saves "
        f"{shown(saved, 100, ' %')} of the steps; it costs {shown(lost['same'], 100, ' points')} of success on the "
        f"same mix and {shown(lost['other'], 100, ' points')} on the other. With learned paths, the critic made "
        f"{sums['helps']} proposals that help ({sums['helps kept']} accepted), {sums['harms']} that do "
        f"harm ({sums['harms kept']} accepted), and {sums['nothing']} that do nothing "
        f"({sums['nothing kept']} accepted).",
    ]
    return "\n".join(lines) + "\n"


def shown(values: Sequence[float], times: float, unit: str) -> str:
    """Format a mean over seeds, ± half of its interval."""
    centre = times * float(np.mean(values))
    if len(values) < 2:
        return f"{centre:.1f}{unit}"
    half = STUDENT[len(values) - 1] * times * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return f"{centre:.1f} ± {half:.1f}{unit}"


if __name__ == "__main__":
    main()
