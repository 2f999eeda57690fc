"""Command to serve a trained team."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, command_group
from marft.common.errors import UserError

app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Ship")
def serve(
    context: typer.Context,
    team: Annotated[Path, typer.Argument(help="Folder of a run or an export.")],
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint of a run: best, last, a step number, or step_000050.")
    ] = "best",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = 8000,
    token: Annotated[str, typer.Option(envvar="MARFT_TOKEN", help="Token that requests must carry.")] = "",
    no_token: Annotated[bool, typer.Option("--no-token", help="Accept remote requests without a token.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent requests.")] = 32,
    queue: Annotated[
        int, typer.Option(min=0, help="Maximum number of waiting requests; further requests are refused.")
    ] = 256,
    timeout: Annotated[float, typer.Option(min=0.001, help="Timeout of a request, in seconds.")] = 600.0,
    grace: Annotated[
        int, typer.Option(min=0, help="Time to finish running requests after SIGTERM or Ctrl-C, in seconds.")
    ] = 30,
    record: Annotated[Path | None, typer.Option(help="Folder for recorded sessions.")] = None,
    mcp: Annotated[str, typer.Option(help="Serve an MCP tool: http (also, at /mcp) or stdio (only).")] = "",
    shadow: Annotated[
        Path | None,
        typer.Option(help="Second team (a run or an export) that plays the recorded sessions, without effects."),
    ] = None,
    shadow_checkpoint: Annotated[
        str, typer.Option(help="Checkpoint of the second team's run: best, last, a step number, or step_000050.")
    ] = "best",
    shadow_output: Annotated[
        Path | None, typer.Option(help="Folder for the shadow's results (default: shadow in the --record folder).")
    ] = None,
    grade: Annotated[
        Path | None,
        typer.Option(help="Recipe, run or export whose rewards score the answers (default: the second team)."),
    ] = None,
    a2a: Annotated[bool, typer.Option("--a2a", help="Serve also an A2A agent, at /a2a.")] = False,
    public_url: Annotated[
        str, typer.Option(help="Public URL in the A2A agent card (default: the URL of the request).")
    ] = "",
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the Python code that an export contains.")
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
