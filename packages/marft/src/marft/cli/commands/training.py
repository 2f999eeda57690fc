"""Command to train a team."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, app


@app.command(context_settings=OVERRIDE_CONTEXT)
def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or with --resume a run.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint.")] = False,
    resume_or_start: Annotated[
        bool, typer.Option("--resume-or-start", help="Go on with the run where there is one, else start it.")
    ] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster to play in: host:port, or auto (cluster.address).")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--init-from", help="Start a new run with the weights of this checkpoint folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the resolved recipe; run nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
    samples: Annotated[
        int | None, typer.Option(min=0, help="Show one episode of every so many steps; 0: none.")
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the team of a recipe.

    Override any setting: --algorithm.level token --training.steps 50
    """
    from marft.cli import handlers, options, output

    changes = options.parse_overrides(context, recipe)
    if samples is not None:
        changes = [*changes, "--training.show_samples_every", str(samples)]
    if ray_address is not None:
        changes = [*changes, "--cluster.address", ray_address]
    handlers.train(
        recipe,
        changes,
        resume=resume,
        resume_or_start=resume_or_start,
        start_from=start_from,
        dry_run=dry_run,
        overwrite=overwrite,
        output_mode=output.output_mode(quiet, as_json),
    )
