"""Demo: a reasoner and an actor learn addition together, and a comparison shows the benefit.

    python -m marft.examples.demo            # the same as `make demo`, in any folder
    python -m marft.examples.demo --quick    # a few steps only, to check that everything works

Each line that starts with ``$`` is a command that you can run as shown.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from marft.cli import evaluation, handlers
from marft.cli.console import bold

RECIPE = Path("demo")  # bundled recipe


def main() -> None:
    """Train the team and each agent alone, then compare the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    start_time = time.perf_counter()
    team_folder = arguments.output / "demo"
    if RECIPE.exists() or team_folder.resolve() == RECIPE.resolve():
        parser.error(f"what is called {RECIPE} here would stand for the recipe; go to another folder, or --output runs")
    steps = ["--training.steps", "3"] if arguments.quick else []
    tasks = 40 if arguments.quick else 500

    train(team_folder, steps)
    evaluate(team_folder, ["base", "last"], tasks, shuffled=True)
    baselines = []
    for learner, frozen in (("reasoner", "actor"), ("actor", "reasoner")):
        folder = arguments.output / f"demo_only_{learner}"
        train(folder, [*steps, f"--policies.{frozen}.train", "frozen"])
        evaluate(folder, ["last"], tasks, shuffled=False)
        baselines.append(folder)
    print_command(f"marft compare {team_folder} {' '.join(map(str, baselines))}")
    handlers.compare([team_folder, *baselines])
    print_command(f"marft report {team_folder} {' '.join(f'--against {folder}' for folder in baselines)}")
    handlers.report(team_folder, baselines)
    handlers.console.print(f"\n{time.perf_counter() - start_time:.0f} s in all. Open {team_folder / 'report.html'}")


def train(folder: Path, changes: list[str]) -> None:
    """Print and run a training command."""
    options = ["--output", str(folder.parent), "--name", folder.name, *changes]
    print_command(f"marft train {RECIPE} --overwrite {' '.join(options)}")
    handlers.train(RECIPE, options, resume=False, start_from=None, dry_run=False, overwrite=True)


def evaluate(folder: Path, checkpoints: list[str], tasks: int, shuffled: bool) -> None:
    """Print and run an evaluation command."""
    probe = " --shuffle-messages" if shuffled else ""
    print_command(f"marft eval {folder} --checkpoint {','.join(checkpoints)} --tasks {tasks}{probe}")
    evaluation.evaluate([folder], [], evaluation.EvaluationOptions(checkpoints, tasks=tasks, shuffle_messages=shuffled))


def print_command(command: str) -> None:
    """Print a command."""
    handlers.console.print(bold(f"\n$ {command}"), soft_wrap=True)


if __name__ == "__main__":
    main()
