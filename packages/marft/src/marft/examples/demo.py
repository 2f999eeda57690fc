"""Demo: a reasoner and an actor learn addition together, and a comparison shows the benefit.

    python -m marft.examples.demo            # the same as `make demo`, in any folder
    python -m marft.examples.demo --quick    # a few steps only, to check that everything works

Each line that starts with ``$`` is a command that you can run as shown.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from marft.cli import commands, evaluating
from marft.cli.console import in_bold

RECIPE = Path("demo")  # bundled recipe


def main() -> None:
    """Train the team and each agent alone, then compare the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    began = time.perf_counter()
    both = arguments.output / "demo"
    if RECIPE.exists() or both.resolve() == RECIPE.resolve():
        parser.error(f"what is called {RECIPE} here would stand for the recipe; go to another folder, or --output runs")
    steps = ["--training.steps", "3"] if arguments.quick else []
    tasks = 40 if arguments.quick else 500

    train(both, steps)
    evaluate(both, ["base", "last"], tasks, shuffled=True)
    alone = []
    for learner, frozen in (("reasoner", "actor"), ("actor", "reasoner")):
        folder = arguments.output / f"demo_only_{learner}"
        train(folder, [*steps, f"--policies.{frozen}.train", "frozen"])
        evaluate(folder, ["last"], tasks, shuffled=False)
        alone.append(folder)
    say(f"marft compare {both} {' '.join(map(str, alone))}")
    commands.compare([both, *alone])
    say(f"marft report {both} {' '.join(f'--against {folder}' for folder in alone)}")
    commands.report(both, alone)
    commands.console.print(f"\n{time.perf_counter() - began:.0f} s in all. Open {both / 'report.html'}")


def train(folder: Path, changes: list[str]) -> None:
    """Print and run a training command."""
    options = ["--output", str(folder.parent), "--name", folder.name, *changes]
    say(f"marft train {RECIPE} --overwrite {' '.join(options)}")
    commands.train(RECIPE, options, resume=False, start_from=None, dry_run=False, overwrite=True)


def evaluate(folder: Path, checkpoints: list[str], tasks: int, shuffled: bool) -> None:
    """Print and run an evaluation command."""
    probe = " --shuffle-messages" if shuffled else ""
    say(f"marft eval {folder} --checkpoint {','.join(checkpoints)} --tasks {tasks}{probe}")
    evaluating.evaluate([folder], [], evaluating.Asked(checkpoints, tasks=tasks, shuffled=shuffled))


def say(command: str) -> None:
    """Print a command."""
    commands.console.print(in_bold(f"\n$ {command}"), soft_wrap=True)


if __name__ == "__main__":
    main()
