"""Commands to export and upload a trained team."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import app


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    checkpoint: Annotated[str, typer.Option(help="best, last, a step, or step_000050.")] = "best",
    output: Annotated[Path | None, typer.Option(help="The folder to write; exports/<run> where none is named.")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Also whole weights, with the adapters in them.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of another export.")] = False,
    team_file: Annotated[
        Path | None, typer.Option(help="The file of a team as which its agents go out, as in marft eval --team-file.")
    ] = None,
) -> None:
    """Export a trained team as a folder.

    The folder holds adapters, a manifest, a recipe and a model card. peft, vLLM, marft eval and marft serve can load
    it.
    """
    from marft.cli import team_export

    team_export.export(run, checkpoint, output, merged=merged, overwrite=overwrite, team_file=team_file)


@app.command()
def push(
    export: Annotated[Path, typer.Argument(help="The folder of an export.")],
    repo_id: Annotated[str, typer.Argument(help="name/model on the Hugging Face hub; made where it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Where it is made: for you alone.")] = False,
    token: Annotated[str, typer.Option(envvar="HF_TOKEN", help="Of the hub; else that of hf auth login.")] = "",
) -> None:
    """Upload an export to the Hugging Face hub.

    Uploads only the listed files, and verifies them first.
    """
    from marft.cli import team_export

    team_export.push(export, repo_id, private=private, token=token)
