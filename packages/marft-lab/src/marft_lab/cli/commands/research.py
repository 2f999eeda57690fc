"""Command-line options of ``marft synthesize``, ``federate``, ``league``, ``worth`` and ``replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, command_group
from marft.common.errors import UserError

app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT)
def synthesize(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or with --resume its rows.")],
    teacher: Annotated[
        str, typer.Option(help="scripts, or a run, a checkpoint, an export, a recipe (synthesis.teacher).")
    ] = "",
    train: Annotated[
        bool, typer.Option("--train", help="Then imitate the rows, and train from there; goes on where it stopped.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on; what was played is not played again.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Let a teacher that is an export run its author's code.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create imitation data for a team with no initial success.

    A teacher plays training tasks. Episodes that are correct, direct, new and free of leaks become imitation rows for
    each role. Override any setting: --synthesis.attempts 8
    """
    from marft.cli import options, output
    from marft_lab.cli import synthesis

    changes, output_mode = options.parse_overrides(context, recipe), output.output_mode(quiet, as_json)
    asked = synthesis.SynthesisOptions(teacher, resume, overwrite, trust_code, output_mode)
    if not train:
        synthesis.synthesize(recipe, changes, asked)
        return
    if resume:
        raise UserError("--train goes on with whatever of it is there; leave out --resume")
    synthesis.cold_start(recipe, changes, asked)


@app.command()
def federate(
    federation: Annotated[Path, typer.Argument(help="A TOML file of sites, each with a recipe of its own.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last round that is over.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file; start nothing.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the teams from several sites together.

    Each site trains on its own tasks, in its own process and folder. Only adapters leave a site.
    """
    from marft.cli import output
    from marft_lab.cli import federation as federating

    federating.federate(federation, resume, dry_run, output.output_mode(quiet, as_json))


@app.command(context_settings=OVERRIDE_CONTEXT)
def league(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a run in which sides play against each other.")],
    matches: Annotated[int, typer.Option(min=2, help="Of each pair, half of them on each side.")] = 100,
    versions: Annotated[int, typer.Option(min=2, help="Versions, at most; they are spread over the run.")] = 8,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare versions of a run by playing matches.

    The untuned base, the checkpoints and the opponent pool play each other on held-out starts, on both sides. The
    report gives Elo ratings with intervals and the score of each pair.
    """
    from marft.cli import options, output
    from marft_lab.cli import league as asked

    asked.run_league(run, options.parse_overrides(context, run), matches, versions, output.output_mode(quiet, as_json))


@app.command(context_settings=OVERRIDE_CONTEXT)
def worth(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    checkpoint: Annotated[str, typer.Option(help="Whose team: base, last, best or step_000050.")] = "last",
    only: Annotated[
        str, typer.Option(help="Parts, with commas: single, swap, leave-out, ablation, counterfactual.")
    ] = "",
    tasks: Annotated[int, typer.Option(min=0, help="How many held-out tasks; 0: as the recipe says.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Attempts at each task.")] = 1,
    attempts: Annotated[int, typer.Option(min=1, help="Of a single agent at each task, at most.")] = 16,
    resamples: Annotated[int, typer.Option(min=1, help="How often each action is sampled again.")] = 3,
    crossed: Annotated[str, typer.Option(help="Checkpoints that play together, with commas.")] = "base,last,best",
    single: Annotated[Path | None, typer.Option(help="A run of one agent, to hold against the team too.")] = None,
    paraphrase: Annotated[
        str, typer.Option(help='Who says messages in other words: base, a policy, module:function; "": nobody.')
    ] = "base",
    rerun: Annotated[bool, typer.Option("--rerun", help="Play what was played before, too.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the team's benefit.

    The command compares the team with a single agent at the same token budget, and with the team after changes to
    roles, weights or messages. It also reports the contribution of each agent.
    """
    from marft.cli import options, output
    from marft_lab.cli import worth as asked
    from marft_lab.team_evaluation.options import ComparisonOptions

    output_mode = output.output_mode(quiet, as_json)
    names = ([name.strip() for name in text.split(",") if name.strip()] for text in (only, crossed))
    parts, checkpoints = names
    wanted = ComparisonOptions(
        checkpoint, parts, tasks, samples, attempts, resamples, checkpoints, single, paraphrase, rerun
    )
    asked.run_worth(run, options.parse_overrides(context, run), wanted, output_mode)


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    algorithms: Annotated[str, typer.Option(help="Presets, with commas; the run's own name means its own settings.")],
    step: Annotated[int, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = 0,
    episodes: Annotated[int, typer.Option(min=0, help="How many episodes to show: those most disagreed about.")] = 4,
) -> None:
    """Assign credit to recorded episodes with several algorithms.

    Shows side by side which actions each algorithm reinforces, and how much.
    """
    from marft_lab.cli.credit_audit import replay_step

    replay_step(run, algorithms.split(","), step, episodes)
