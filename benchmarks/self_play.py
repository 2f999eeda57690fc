"""Train a policy against itself in Kuhn poker, and measure how strong and how exploitable its versions are.

    python benchmarks/self_play.py
    python benchmarks/self_play.py --only-table

``textarena`` is trained as it ships, over three seeds. Then its versions (the untuned one, and checkpoints) play each
other, from both sides, on held-out deals. *Against untuned* is the share of matches won, with Wilson's interval over
all seeds. The exploitability of a version follows from its probabilities (docs/worlds/textarena.md). Writes
results/self_play.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
from environments import World, trained
from matplotlib.figure import Figure

from marft.config import load_recipe
from marft.evaluation.intervals import wilson_interval
from marft_lab.league.evaluation.matches import play_league

SETTINGS = World("textarena")
VERSIONS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--matches", type=int, default=400, help="matches per pair of versions")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 uses all cores")
    parser.add_argument("--output", type=Path, default=Path("runs/environments"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    parser.add_argument("--only-table", action="store_true", help="only write the table, from stored results")
    arguments = parser.parse_args()
    path = arguments.results / "self_play.json"
    found = json.loads(path.read_text(encoding="utf-8"))["seeds"] if path.is_file() else {}
    for seed in arguments.seeds if not arguments.only_table else ():
        if str(seed) not in found:
            found[str(seed)] = played(seed, arguments)
            path.write_text(json.dumps({"machine": machine.describe(), "seeds": found}, indent=2) + "\n")
    lines = table(list(found.values()), arguments.matches)
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plot(found).savefig(path.with_suffix(".svg"))
    print("\n".join(lines))


def played(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return one seed's versions, with matches won against the untuned one, and exploitability."""
    folder = trained("textarena", SETTINGS, "team", seed, arguments)
    league = play_league(load_recipe(folder.config_path), folder, arguments.matches, VERSIONS, lambda *_: None)
    scores = [0.5, *(league.score(number, 0) for number in range(1, len(league.versions)))]
    seconds = sum(row["seconds"] for row in folder.read_metrics())
    return {
        "versions": list(league.versions), "against_untuned": scores, "exploitability": list(league.exploitability),
        "elo": [rating.elo for rating in league.ratings], "seconds": seconds,
    }  # fmt: skip


def table(seeds: Sequence[Mapping[str, Any]], matches: int) -> list[str]:
    """Return a line per version: means over the seeds."""
    lines = ["| version | matches won against untuned | exploitable by | of each seed |", "| --- | ---: | ---: | --- |"]
    for place, version in enumerate(seeds[0]["versions"] if seeds else ()):
        won = [seed["against_untuned"][place] for seed in seeds]
        low, high = wilson_interval(round(sum(won) * matches), matches * len(seeds))
        score = f"{sum(won) / len(won):.1%} ({low:.1%} to {high:.1%})" if place else ""
        lost = [seed["exploitability"][place] for seed in seeds]
        each = ", ".join(f"{one:.3f}" for one in lost)
        lines.append(f"| {version} | {score} | {sum(lost) / len(lost):.3f} | {each} |")
    return lines


def plot(seeds: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Plot matches won against the untuned version, and exploitability, by version with a line per seed."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    won, lost = figure.subplots(1, 2)
    for number, seed in enumerate(seeds.values()):
        steps = [int(version.rpartition("_")[2]) if "_" in version else 0 for version in seed["versions"]]
        won.plot(steps, seed["against_untuned"], marker="o", ms=3, color=f"C{number}")
        lost.plot(steps, seed["exploitability"], marker="o", ms=3, color=f"C{number}")
    won.set(title="matches won against the untuned version", xlabel="step", ylim=(0, 1))
    lost.set(title="exploitable by (0: perfect play)", xlabel="step", ylim=(0, None))
    for axes in (won, lost):
        axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    main()
