"""The ``marft`` application without its subcommands."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from marft.common.registry import registered
from marft.common.satellites import not_installed, version_problem
from marft.common.version import __version__


def group(**attributes: Any) -> typer.Typer:
    """Return an empty command group with plain-text output, as in ``marft`` itself."""
    return typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, **attributes)


class CommandGroup(TyperGroup):
    """Command group with the core's commands and those registered under ``marft.commands`` by installed packages."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(self.commands)


class _Commands(MutableMapping[str, Any]):
    """Commands by name. A registered command is imported on first lookup."""

    def __init__(self, own: MutableMapping[str, Any]) -> None:
        self._own = own

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        known = registered("commands")
        if name not in known and (why := not_installed("commands", name)):
            return _unusable(why)
        return _loaded(name, known[name])

    def __setitem__(self, name: str, command: Any) -> None:
        self._own[name] = command

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from sorted(registered("commands").keys() - self._own.keys())

    def __len__(self) -> int:
        return len(list(iter(self)))


def _loaded(name: str, point: EntryPoint) -> Any:
    """Import a registered command. If the import fails, return a command that reports the error when it runs."""
    if problem := version_problem(point):
        return _unusable(problem)
    try:
        found = point.load()
        with_paths_at_home(found)
        command = typer.main.get_command(found)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a broken package must not disable other commands
        return _unusable(f"marft {name}: {point.value} cannot be imported: {type(error).__name__}: {error}")
    return getattr(command, "commands", {}).get(name, command)


def _unusable(why: str) -> Any:
    """Return a command that fails with a reason, which its help shows too."""

    def fail() -> None:
        raise ValueError(why)

    unusable = group()
    unusable.command(
        help=f"Cannot be used: {why}", short_help="Cannot be used: its package is broken.", context_settings=OVERRIDES
    )(fail)
    return typer.main.get_command(unusable)


OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
app = group(
    name="marft",
    cls=CommandGroup,
    help="Multi-agent reinforcement fine-tuning: tune the language models of a team of agents together.",
    no_args_is_help=True,
    epilog="--debug, with any command, prints the traceback of an error.",
)

Quiet = Annotated[bool, typer.Option("--quiet", help="Print the end, warnings and errors alone.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: one JSON object a line, and nothing else.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"marft {__version__}")
        raise typer.Exit


class PathsAtHome(TyperCommand):
    """Command that expands ``~`` in its paths. Shells leave ``~`` unchanged in ``--to=~/file`` and in quotes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments and expand paths."""
        left = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            ctx.params[name] = _at_home(value)
        return left


def _at_home(value: Any) -> Any:
    from marft.config.folders import at_home

    if isinstance(value, list | tuple):
        return type(value)(map(_at_home, value))
    return at_home(value) if isinstance(value, Path) else value


def with_paths_at_home(commands: typer.Typer) -> None:
    """Let every command in a group, and in its inner groups, expand ``~`` in paths."""
    for command in commands.registered_commands:
        command.cls = PathsAtHome
    for inner in commands.registered_groups:
        if inner.typer_instance is not None:
            with_paths_at_home(inner.typer_instance)


@app.callback()
def _every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
