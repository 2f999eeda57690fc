"""Commands for traces, and the viewer command."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, VerboseOption, command_group
from marft.common.errors import UserError

TracesOption = Annotated[
    list[Path] | None, typer.Option("--traces", help="File of conversations or spans, as JSON lines; repeatable.")
]
RolesOption = Annotated[list[str] | None, typer.Option(help='Role of a name in the traces: "name=role"; repeatable.')]
app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Train")
def sft(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="Recipe: a TOML file or a bundled name; with --resume, the folder of a run.")
    ],
    traces: TracesOption = None,
    role: RolesOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run from its newest checkpoint.")] = False,
    start_from: Annotated[
        Path | None,
        typer.Option("--init-from", help="Start with the weights of this checkpoint folder."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Warm start a team from other programs' traces.

    Each role learns by imitation from its own turns only. Override settings as in: --sft.epochs 2
    """
    from marft.cli.options import parse_overrides
    from marft.cli.output import output_mode
    from marft_serve.cli.traces import RecipeWithTraces, run_sft

    overrides = parse_overrides(context, recipe)
    run_sft(
        RecipeWithTraces(recipe, overrides, traces or [], role or []),
        resume=resume,
        start_from=start_from,
        overwrite=overwrite,
        output_mode=output_mode(quiet, as_json, verbose),
    )


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Evaluate")
def score(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="Recipe (a TOML file or a bundled name), or folder of a run.")],
    traces: TracesOption = None,
    role: RolesOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score other programs' traces.

    The recipe's environment and reward terms compute the scores, as a table by term and agent. No model is loaded.
    """
    from marft.cli.options import parse_overrides
    from marft.cli.output import output_mode
    from marft_serve.cli.traces import RecipeWithTraces, run_score

    overrides = parse_overrides(context, recipe)
    run_score(RecipeWithTraces(recipe, overrides, traces or [], role or []), overwrite, output_mode(quiet, as_json))


@app.command(rich_help_panel="Look")
def trace(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of marft serve --record.")],
    otlp: Annotated[str, typer.Option(help="URL of an OTLP receiver, such as http://localhost:4318.")] = "",
    output: Annotated[Path | None, typer.Option(help="File to write instead, as JSON lines; must not exist.")] = None,
    step: Annotated[int, typer.Option(min=0, help="Recorded training step; 0: all steps.")] = 0,
    task: Annotated[str, typer.Option(help="Export only this task, or task#sample.")] = "",
    content: Annotated[
        bool, typer.Option("--include-content", help="Include prompts, outputs and tool replies.")
    ] = False,
    header: Annotated[
        list[str] | None, typer.Option(help="HTTP header for each request: name=value; repeatable.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout of the receiver, in seconds.")] = 60.0,
) -> None:
    """Export recorded episodes as OpenTelemetry traces.

    There is a span for each action, answer, tool call, environment step and reward term.
    """
    from marft_serve.cli.traces import run_trace
    from marft_serve.tracing.recorded_episodes import Recording

    run_trace(Recording.from_folder(run, step, task), otlp, output, header or [], timeout, content)


@app.command(rich_help_panel="Look")
def view(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs, or folders of runs (default: runs).")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Require no token: every user of this machine may read the runs.")
    ] = False,
) -> None:
    """Show runs in a browser, also during training.

    The viewer is read-only and accepts only local connections by default.
    """
    from marft.cli.console import INTERRUPTED, wide_console
    from marft.common.packages import install_command

    if any(find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise UserError(f"the viewer needs packages that are not installed: {install_command('viewer')}")
    from marft_serve.viewer.app import run_viewer

    console = wide_console()

    def ready(url: str) -> None:
        """Print the URL."""
        console.print(f"{url}\nopen it in a browser; Ctrl-C ends it", soft_wrap=True, markup=False)

    try:
        run_viewer(runs or [Path("runs")], host, port, not no_token, ready)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
