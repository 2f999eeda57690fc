"""Command to serve a trained team."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, command_group
from marft.common.errors import UserError

app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT)
def serve(
    context: typer.Context,
    team: Annotated[Path, typer.Argument(help="The folder of a run, or an export.")],
    checkpoint: Annotated[str, typer.Option(help="Of a run: best, last, a step, or step_000050.")] = "best",
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    token: Annotated[str, typer.Option(envvar="MARFT_TOKEN", help="What requests must bring.")] = "",
    no_token: Annotated[bool, typer.Option("--no-token", help="Let anybody ask who reaches it.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that are answered at a time.")] = 32,
    queue: Annotated[int, typer.Option(min=0, help="Requests that wait for that; more are refused.")] = 256,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one answer.")] = 600.0,
    grace: Annotated[int, typer.Option(min=0, help="Seconds for what was begun, once it is to end.")] = 30,
    record: Annotated[Path | None, typer.Option(help="A folder for what is asked and answered.")] = None,
    mcp: Annotated[str, typer.Option(help="Also as an MCP tool: http (at /mcp), or stdio and nothing else.")] = "",
    shadow: Annotated[
        Path | None,
        typer.Option(help="A second team, a run or an export: it plays what --record keeps, without effects."),
    ] = None,
    shadow_checkpoint: Annotated[
        str, typer.Option(help="The second team's, where it is a run: best, last, a step, or step_000050.")
    ] = "best",
    shadow_output: Annotated[
        Path | None, typer.Option(help="What comes of it; a folder 'shadow' among the sessions where none is named.")
    ] = None,
    grade: Annotated[
        Path | None,
        typer.Option(help="A recipe, run or export that says what answers are worth; else the second team's."),
    ] = None,
    a2a: Annotated[bool, typer.Option("--a2a", help="Also as an A2A agent (at /a2a).")] = False,
    public_url: Annotated[
        str, typer.Option(help="By which others reach it, for the agent's card; else as asked.")
    ] = "",
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Of an export: run the code that it brings.")
    ] = False,
) -> None:
    """Serve a trained team through an OpenAI-compatible API.

    There is one model for each role, and one for the whole team. On SIGTERM, the server finishes pending requests
    and exits.
    """
    from marft.cli.options import parse_overrides
    from marft_serve.cli import serving
    from marft_serve.serving.options import ServeOptions, ShadowTeam

    overrides, second = parse_overrides(context, team), None
    if shadow is not None:
        if record is None:
            raise UserError("--shadow: it plays what is recorded, and nothing is; name a folder with --record")
        overrides, changes = serving.split_overrides(overrides)
        second = ShadowTeam(shadow, shadow_checkpoint, changes, trust_code, record, shadow_output, grade)
    elif shadow_output or grade or shadow_checkpoint != "best":
        raise UserError(
            "--shadow-checkpoint, --shadow-output and --grade are of a shadow; name the second team with --shadow"
        )
    listen, limits = (host, port, token, no_token), (concurrency, queue, timeout, grace)
    options = ServeOptions(*listen, *limits, record, mcp, a2a, public_url)
    serving.serve(team, overrides, options, checkpoint=checkpoint, trust_code=trust_code, shadow=second)
