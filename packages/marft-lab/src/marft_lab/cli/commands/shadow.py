"""Options for the command ``marft shadow``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, command_group

app = command_group()


@app.command(context_settings=OVERRIDE_CONTEXT)
def shadow(
    context: typer.Context,
    team: Annotated[Path, typer.Argument(help="The second team: the folder of a run, or an export.")],
    sessions: Annotated[Path, typer.Option(help="The folder of marft serve --record.")],
    output: Annotated[
        Path | None, typer.Option(help="What comes of it; a folder 'shadow' among the sessions where none is named.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="Of a run: best, last, a step, or step_000050.")] = "best",
    grade: Annotated[
        Path | None, typer.Option(help="A recipe, run or export that says what answers are worth; else the team's own.")
    ] = None,
    feedback: Annotated[Path | None, typer.Option(help="What users said: lines of session and score.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is still recorded.")] = False,
    gate: Annotated[bool, typer.Option("--gate", help="End with 1 unless it is promoted.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Of an export: run the code that it brings.")
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
