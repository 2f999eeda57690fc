"""What is said to train a team."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDES, AsJson, Quiet, app

Traces = Annotated[
    list[Path] | None, typer.Option("--from", help="Conversations or spans, JSON lines; repeat the option.")
]
Roles = Annotated[
    list[str] | None, typer.Option(help='Whose turns those of a name are: "name in the traces=role"; repeat it.')
]


@app.command(context_settings=OVERRIDES)
def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or with --resume a run.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint.")] = False,
    resume_or_start: Annotated[
        bool, typer.Option("--resume-or-start", help="Go on with the run where there is one, else start it.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster to play in: host:port, or auto (cluster.address).")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Start a new run with the weights of this checkpoint folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the resolved recipe; run nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
    samples: Annotated[
        int | None, typer.Option(min=0, help="Show one episode of every so many steps; 0: none.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train the team of a recipe.

    Any setting can be changed: --algorithm.level token --training.steps 50
    """
    from marft.cli import commands, options, output

    changes = options.overrides_of(context, recipe)
    if samples is not None:
        changes = [*changes, "--training.show_samples_every", str(samples)]
    if address is not None:
        changes = [*changes, "--cluster.address", address]
    commands.train(
        recipe,
        changes,
        resume=resume,
        resume_or_start=resume_or_start,
        start_from=start_from,
        dry_run=dry_run,
        overwrite=overwrite,
        how=output.how(quiet, as_json),
    )


@app.command(context_settings=OVERRIDES)
def sft(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or with --resume a run.")],
    traces: Traces = None,
    role: Roles = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint.")] = False,
    start_from: Annotated[
        Path | None, typer.Option(help="Start with the weights of this checkpoint folder, not the base's.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Warm start a team from traces of other programs.

    By imitation, each role of its own turns alone. Settings can be changed: --sft.epochs 2
    """
    from marft.cli import options, output
    from marft.cli import traces as of_traces

    changes = options.overrides_of(context, recipe)
    of_traces.sft(
        recipe,
        changes,
        traces or [],
        role or [],
        resume=resume,
        start_from=start_from,
        overwrite=overwrite,
        how=output.how(quiet, as_json),
    )


@app.command(context_settings=OVERRIDES)
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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Begin a team that solves nothing yet.

    A teacher plays training tasks; what is right, direct, new and leaks nothing becomes rows that each role imitates.
    Settings can be changed: --synthesis.attempts 8
    """
    from marft.cli import options, output, synthesis

    changes, how = options.overrides_of(context, recipe), output.how(quiet, as_json)
    if not train:
        synthesis.synthesize(
            recipe, changes, teacher, resume=resume, overwrite=overwrite, trust_code=trust_code, how=how
        )
        return
    if resume:
        raise ValueError("--train goes on with whatever of it is there; leave out --resume")
    synthesis.cold_start(recipe, changes, teacher, overwrite=overwrite, trust_code=trust_code, how=how)


@app.command(context_settings=OVERRIDES)
def score(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or the folder of a run.")],
    traces: Traces = None,
    role: Roles = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Grade traces of other programs.

    By the environment and the reward terms of a recipe: a table by term and agent. No model is loaded.
    """
    from marft.cli import options, output
    from marft.cli import traces as of_traces

    of_traces.score(
        recipe, options.overrides_of(context, recipe), traces or [], role or [], overwrite, output.how(quiet, as_json)
    )


@app.command()
def federate(
    federation: Annotated[Path, typer.Argument(help="A TOML file of sites, each with a recipe of its own.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last round that is over.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file; start nothing.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train the teams of several sites together.

    Each site learns from its own tasks, in a process and a folder of its own. Adapters leave it, and nothing else.
    """
    from marft.cli import federating, output

    federating.federate(federation, resume, dry_run, output.how(quiet, as_json))
