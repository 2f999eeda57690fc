"""Command-line options of ``marft synthesize``, ``federate``, ``league``, ``worth`` and ``replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, command_group
from marft.common.errors import UserError

app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Train")
def synthesize(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="Recipe: a TOML file or a bundled name; with --resume, the folder of its rows.")
    ],
    teacher: Annotated[
        str, typer.Option(help="Teacher: scripts, a run, a checkpoint, an export or a recipe (sets synthesis.teacher).")
    ] = "",
    train: Annotated[
        bool, typer.Option("--train", help="Then imitate the rows and train; resumes where it stopped.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume without playing the same tasks again.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the Python code that a teacher's export contains.")
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


@app.command(rich_help_panel="Train")
def federate(
    federation: Annotated[Path, typer.Argument(help="TOML file with the sites and their recipes.")],
    resume: Annotated[bool, typer.Option("--resume", help="Resume after the last complete round.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file and start nothing.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the teams from several sites together.

    Each site trains on its own tasks, in its own process and folder. Only adapters leave a site.
    """
    from marft.cli import output
    from marft_lab.cli import federation as federating

    federating.federate(federation, resume, dry_run, output.output_mode(quiet, as_json))


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Evaluate")
def league(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="Folder of a run with opponents.")],
    matches: Annotated[int, typer.Option(min=2, help="Matches per pair, half on each side.")] = 100,
    versions: Annotated[int, typer.Option(min=2, help="Maximum number of versions, spread over the run.")] = 8,
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


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Evaluate")
def worth(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of the team: base, last, best or step_000050.")] = "last",
    only: Annotated[
        str,
        typer.Option(
            help="Parts, separated by commas: single, swap, leave-out, ablation, counterfactual (default: all)."
        ),
    ] = "",
    tasks: Annotated[int, typer.Option(min=0, help="Number of held-out tasks; 0: the recipe's number.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Attempts per task.")] = 1,
    attempts: Annotated[int, typer.Option(min=1, help="Maximum attempts of a single agent per task.")] = 16,
    resamples: Annotated[int, typer.Option(min=1, help="Resamples per action.")] = 3,
    crossed: Annotated[str, typer.Option(help="Checkpoints for cross-play, separated by commas.")] = "base,last,best",
    single: Annotated[Path | None, typer.Option(help="Run of a single agent to compare with the team.")] = None,
    paraphrase: Annotated[
        str, typer.Option(help='Source of paraphrased messages: base, a policy, or module:function; "": none.')
    ] = "base",
    rerun: Annotated[bool, typer.Option("--rerun", help="Ignore saved results and play again.")] = False,
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


@app.command(rich_help_panel="Evaluate")
def replay(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    algorithms: Annotated[
        str, typer.Option(help="Presets, separated by commas; the run's preset means the run's own settings.")
    ],
    step: Annotated[int, typer.Option(min=0, help="Recorded training step; 0: the last.")] = 0,
    episodes: Annotated[int, typer.Option(min=0, help="Number of episodes to show, largest disagreement first.")] = 4,
) -> None:
    """Assign credit to recorded episodes with several algorithms.

    The table shows which actions each algorithm reinforces, and how much.
    """
    from marft_lab.cli.credit_audit import replay_step

    replay_step(run, algorithms.split(","), step, episodes)
