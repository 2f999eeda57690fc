"""``marft``: train, evaluate, compare and report. Heavy imports wait until a command runs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

app = typer.Typer(
    name="marft",
    help="Multi-agent reinforcement fine-tuning: tune the language models of a team of agents together.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="--debug, with any command, prints the traceback of an error.",
)

DEBUG = "--debug"
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=OVERRIDES)
def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe (TOML), or the folder of a run with --resume.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint.")] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Start a new run with the weights of this checkpoint folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the resolved recipe; run nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete a run of the same name first.")] = False,
) -> None:
    """Train the team of a recipe. Any setting can be changed: --algorithm.level token --training.steps 50"""
    from marft.cli import commands

    commands.train(recipe, context.args, resume=resume, start_from=start_from, dry_run=dry_run, overwrite=overwrite)


@app.command("eval", context_settings=OVERRIDES)
def evaluate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a recipe (then only the base).")],
    checkpoint: Annotated[
        str, typer.Option(help="base, last, best or step_000050; several with commas.")
    ] = "base,last",
    mode: Annotated[str, typer.Option(help="greedy, sampled, or both with a comma.")] = "",
    tasks: Annotated[int, typer.Option(min=0, help="How many held-out tasks; 0: as the recipe says.")] = 0,
    shuffle_messages: Annotated[
        bool, typer.Option("--shuffle-messages", help="Also with every agent seeing messages of another task.")
    ] = False,
) -> None:
    """Evaluate a run's checkpoints and its untuned base on held-out tasks, with 95 % intervals."""
    from marft.cli import commands

    names = [name.strip() for name in checkpoint.split(",")]
    commands.evaluate(run, context.args, names, mode, tasks, shuffle_messages)


@app.command(context_settings=OVERRIDES)
def play(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe (then with its untuned base), or the folder of a run.")],
    human: Annotated[list[str] | None, typer.Option(help="An agent that you play; repeat the option.")] = None,
    checkpoint: Annotated[str, typer.Option(help="Of a run: base, last, best or step_000050.")] = "last",
    task: Annotated[int, typer.Option(help="Which task of the test split.")] = 0,
) -> None:
    """Play one episode live, agent by agent, with what each saw; take any seat yourself."""
    from marft.cli import commands

    commands.play(recipe, context.args, human or [], checkpoint, task)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that were evaluated.")],
) -> None:
    """A table of evaluated runs side by side, each against its own base on the same tasks."""
    from marft.cli import commands

    commands.compare(runs)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    against: Annotated[list[Path] | None, typer.Option(help="Other runs to show beside it; repeat the option.")] = None,
) -> None:
    """Write report.html: training curves, before and after, sample episodes."""
    from marft.cli import commands

    commands.report(run, against or [])


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    algorithms: Annotated[str, typer.Option(help="Presets, with commas; the run's own name means its own settings.")],
    step: Annotated[int, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = 0,
    episodes: Annotated[int, typer.Option(min=0, help="How many episodes to show: those most disagreed about.")] = 4,
) -> None:
    """Credit a run's recorded episodes by several algorithms, side by side: which would push what, and how far."""
    from marft.cli import commands

    commands.replay(run, algorithms.split(","), step, episodes)


@app.command()
def graph(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    episode: Annotated[str, typer.Argument(help="Its place in the step (0, 1, …), or task#sample.")] = "0",
    step: Annotated[int, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = 0,
) -> None:
    """Draw one recorded episode: who acted when, and who depended on whom."""
    from marft.cli import commands

    commands.graph(run, episode, step)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    step: Annotated[int | None, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = None,
    agent: Annotated[str, typer.Option(help="Only what this agent did.")] = "",
    task: Annotated[
        str, typer.Option(help="Only this task, or task#sample; without --step, how it went at every step.")
    ] = "",
    worst: Annotated[bool, typer.Option("--worst", help="Those that earned least first.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Those that earned most first.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Those that could not be scored.")] = False,
    count: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 3,
) -> None:
    """Read recorded episodes: what each agent saw, said, used and earned, and why episodes were dropped."""
    from marft.cli.show import show as run_show

    orders = [name for name, wanted in (("worst", worst), ("best", best), ("failed", failed)) if wanted]
    run_show(run, step, agent, task, orders, count)


@app.command()
def algorithms(
    name: Annotated[str, typer.Argument(help="A preset, to see every setting of it.")] = "",
) -> None:
    """The algorithms that a recipe can name, or all settings of one."""
    from marft.cli import commands

    commands.algorithms(name)


def main() -> None:
    """The console entry point: errors of the user's making are one message, not a traceback.

    Parts that a recipe names by import path may lie in the folder that the command is run from.
    """
    from marft.cli.errors import friendly

    signal.signal(signal.SIGTERM, _terminated)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    words = [word for word in sys.argv[1:] if word != DEBUG]
    with friendly(debug=DEBUG in sys.argv):
        app(words)


def _terminated(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Let go of everything that was started; what was saved is whole."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
