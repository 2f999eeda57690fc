"""Train the demo team with rollout.reuse 1, 2 and 4, at equal numbers of sampled actions.

    python benchmarks/reuse.py
    python benchmarks/reuse.py --level action --reuse 1 2      # weights whole actions, not by the mean of their tokens

The runs have half of the demo's tasks per step, and fewer steps, so that something is left to learn. Interrupted runs
resume. Writes results/reuse.json, .md and .svg; with --level, reuse_<level>.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import machine
from lag import curve, measured, plot, save, trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--reuse", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks per evaluation")
    parser.add_argument("--level", default="", help="level of algorithm.sampler_correction; default: the recipe's")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    name = f"reuse_{arguments.level}" if arguments.level else "reuse"
    corrected = ("--algorithm.sampler_correction.level", arguments.level) if arguments.level else ()
    rows = []
    for seed in arguments.seeds:
        for reuse in arguments.reuse:
            changes = ("--rollout.reuse", str(reuse), *corrected)
            folder = trained(arguments.output / name, f"reuse_{reuse}-{seed}", seed, changes)
            found = curve(folder, arguments.tasks)
            rows.append({"reuse": reuse, "seed": seed, **measured(folder), "curve": found})
            steps = [point["step"] for point in found[1:]]
            table = [
                f"| reuse | seed | {' | '.join(f'step {step}' for step in steps)} | learning | oldest action | ess |",
                f"| ---: | ---: | {' | '.join('---:' for _ in steps)} | ---: | ---: | ---: |",
                *(
                    f"| {row['reuse']} | {row['seed']} | "
                    f"{' | '.join(format(point['sampled'], '.1%') for point in row['curve'][1:])} "
                    f"| {row['learning']:.0f} s | {row['oldest']:.0f} | {row['ess']:.3f} |"
                    for row in rows
                ),
            ]
            save(arguments.results, name, rows, table, plot(rows, "reuse", ("actions", "learning")))


if __name__ == "__main__":
    main()
