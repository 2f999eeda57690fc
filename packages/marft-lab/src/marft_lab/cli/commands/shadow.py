"""Options for the command ``marft shadow``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, command_group

app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Evaluate")
def shadow(
    context: typer.Context,
    team: Annotated[Path, typer.Argument(help="Second team: folder of a run or an export.")],
    sessions: Annotated[Path, typer.Option(help="Folder of marft serve --record.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results (default: shadow in the sessions folder).")
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint of a run: best, last, a step number, or step_000050.")
    ] = "best",
    grade: Annotated[
        Path | None,
        typer.Option(help="Recipe, run or export whose rewards score the answers (default: the second team)."),
    ] = None,
    feedback: Annotated[Path | None, typer.Option(help="User feedback: JSON lines with session and score.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with sessions that are still being recorded.")
    ] = False,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit with status 1 unless the second team is promoted.")
    ] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the Python code that an export contains.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a second team on recorded requests.

    The second team plays the recorded sessions. Its tools have no effect and answer as in the recorded session. You can
    read the result at any time and stop at any time; the same command resumes.
    """
    from marft.cli import options
    from marft.cli import output as spoken
    from marft_lab.cli import shadow as shadowing
    from marft_lab.shadow.setup import DEFAULT_FOLDER, ShadowRequest

    changes, output = options.parse_overrides(context, team), output or sessions / DEFAULT_FOLDER
    request = ShadowRequest(team, checkpoint, changes, trust_code, sessions, output, grade, feedback, follow)
    if not shadowing.shadow(request, spoken.output_mode(quiet, as_json)) and gate:
        raise typer.Exit(1)
