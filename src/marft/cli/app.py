"""The ``marft`` command, without its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from marft import __version__

app = typer.Typer(
    name="marft",
    help="Multi-agent reinforcement fine-tuning: tune the language models of a team of agents together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="--debug, with any command, prints the traceback of an error.",
)

Quiet = Annotated[bool, typer.Option("--quiet", help="Print the end, warnings and errors alone.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: one JSON object a line, and nothing else.")]
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"marft {__version__}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
