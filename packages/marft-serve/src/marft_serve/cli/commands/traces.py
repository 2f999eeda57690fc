"""Commands for traces, and the viewer command."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, command_group
from marft.common.errors import UserError

TracesOption = Annotated[
    list[Path] | None, typer.Option("--traces", help="Conversations or spans, JSON lines; repeat the option.")
]
RolesOption = Annotated[
    list[str] | None, typer.Option(help='Whose turns those of a name are: "name in the traces=role"; repeat it.')
]
app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT)
def sft(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or with --resume a run.")],
    traces: TracesOption = None,
    role: RolesOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint.")] = False,
    start_from: Annotated[
        Path | None,
        typer.Option("--init-from", help="Start with the weights of this checkpoint folder, not the base's."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
    quiet: QuietOption = False,
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
        output_mode=output_mode(quiet, as_json),
    )


@app.command(context_settings=OVERRIDE_CONTEXT)
def score(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or the folder of a run.")],
    traces: TracesOption = None,
    role: RolesOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
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


@app.command()
def trace(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or one of marft serve --record.")],
    otlp: Annotated[str, typer.Option(help="A receiver, as http://localhost:4318.")] = "",
    output: Annotated[Path | None, typer.Option(help="A new file instead, for traces as JSON lines.")] = None,
    step: Annotated[int, typer.Option(min=0, help="A recorded training step; 0: all of them.")] = 0,
    task: Annotated[str, typer.Option(help="Only this task, or task#sample.")] = "",
    content: Annotated[
        bool, typer.Option("--include-content", help="Also what agents were asked and said, and what tools answered.")
    ] = False,
    header: Annotated[list[str] | None, typer.Option(help="Sent with each request: name=value; repeat it.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that the receiver may be silent.")] = 60.0,
) -> None:
    """Export recorded episodes as OpenTelemetry traces.

    There is a span for each action, answer, tool call, environment step and reward term.
    """
    from marft_serve.cli.traces import run_trace
    from marft_serve.tracing.recorded_episodes import Recording

    run_trace(Recording.from_folder(run, step, task), otlp, output, header or [], timeout, content)


@app.command()
def view(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs, or folders of runs; none: those in runs.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens; 0: any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="The address that it listens on.")] = "127.0.0.1",
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Ask for no token: whoever is on this machine may look.")
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
