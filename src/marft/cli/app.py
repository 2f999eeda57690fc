"""The ``marft`` command, without its subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from marft.version import __version__

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


class PathsAtHome(TyperCommand):
    """A command whose paths may begin with ``~``, which shells leave as it is in ``--to=~/file`` and in quotes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words, and expand those that are paths."""
        left = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            ctx.params[name] = _at_home(value)
        return left


def _at_home(value: Any) -> Any:
    from marft.config.folders import at_home

    if isinstance(value, list | tuple):
        return type(value)(map(_at_home, value))
    return at_home(value) if isinstance(value, Path) else value


def with_paths_at_home(group: typer.Typer) -> None:
    """Let all commands of a group, and of the groups in it, take paths that begin with ``~``."""
    for command in group.registered_commands:
        command.cls = PathsAtHome
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            with_paths_at_home(inner.typer_instance)


@app.callback()
def _every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
