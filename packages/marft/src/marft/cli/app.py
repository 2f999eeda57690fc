"""The ``marft`` application without its subcommands."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from marft.common.errors import UserError
from marft.common.packages import missing_extra, registered_entry_points, version_problem
from marft.common.version import __version__

HELP_GROUPS = ("Start", "Train", "Evaluate", "Look", "Ship")  # groups of commands in the help, in this order
OTHER_GROUP = "More"  # group of the commands that declare none of these


def command_group(add_completion: bool = False, **attributes: Any) -> typer.Typer:
    """Return an empty command group with plain-text output, as in ``marft`` itself."""
    return typer.Typer(
        pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=add_completion, **attributes
    )


class CommandGroup(TyperGroup):
    """Command group with the core's commands and those registered under ``marft.commands`` by installed packages.

    A command chooses its group in the help with ``rich_help_panel``, one of :data:`HELP_GROUPS`.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(self.commands)

    def commands_by_group(self) -> dict[str, list[tuple[str, Any]]]:
        """Return the names and commands of each group of the help."""
        groups: dict[str, list[tuple[str, Any]]] = {title: [] for title in (*HELP_GROUPS, OTHER_GROUP)}
        for name, command in self.commands.items():
            if not command.hidden:
                title = getattr(command, "rich_help_panel", None)
                groups[title if title in HELP_GROUPS else OTHER_GROUP].append((name, command))
        return groups

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands into the help, group by group."""
        groups = self.commands_by_group()
        column = max(len(name) for members in groups.values() for name, _ in members)
        for title, members in groups.items():
            if members:
                rows = [
                    (name.ljust(column), item.get_short_help_str(formatter.width - 6 - column))
                    for name, item in members
                ]
                with formatter.section(title):
                    formatter.write_dl(rows)


class _Commands(MutableMapping[str, Any]):
    """Commands by name. A registered command is imported on first lookup."""

    def __init__(self, core_commands: MutableMapping[str, Any]) -> None:
        self._core_commands = core_commands

    def __getitem__(self, name: str) -> Any:
        if name in self._core_commands:
            return self._core_commands[name]
        entry_points = registered_entry_points("commands")
        if name not in entry_points and (reason := missing_extra("commands", name)):
            return _failing_command(reason)
        return _load_command(name, entry_points[name])

    def __setitem__(self, name: str, command: Any) -> None:
        self._core_commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._core_commands[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._core_commands
        yield from sorted(registered_entry_points("commands").keys() - self._core_commands.keys())

    def __len__(self) -> int:
        return len(list(iter(self)))


def _load_command(name: str, entry_point: EntryPoint) -> Any:
    """Import a registered command. If the import fails, return a command that reports the error when it runs."""
    if problem := version_problem(entry_point):
        return _failing_command(problem)
    try:
        target = entry_point.load()
        expand_command_paths(target)
        command = typer.main.get_command(target)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a broken package must not disable other commands
        return _failing_command(
            f"marft {name}: {entry_point.value} cannot be imported: {type(error).__name__}: {error}"
        )
    return getattr(command, "commands", {}).get(name, command)


def _failing_command(reason: str) -> Any:
    """Return a command that fails with a reason, which its help shows too."""

    def fail() -> None:
        raise UserError(reason)

    failing_group = command_group()
    failing_group.command(
        help=f"Cannot be used: {reason}",
        short_help="Cannot be used: its package is broken.",
        context_settings=OVERRIDE_CONTEXT,
    )(fail)
    return typer.main.get_command(failing_group)


OVERRIDE_CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
app = command_group(
    name="marft",
    cls=CommandGroup,
    help="Multi-agent reinforcement fine-tuning: tune the language models of a team of agents together.",
    no_args_is_help=True,
    epilog="--debug, with any command, prints the traceback of an error.",
    add_completion=True,
)

QuietOption = Annotated[bool, typer.Option("--quiet", help="Print only warnings, errors and the result.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Print more metrics of each step, and each agent.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for programs.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"marft {__version__}")
        raise typer.Exit


class ExpandPathsCommand(TyperCommand):
    """Command that expands ``~`` in its paths. Shells leave ``~`` unchanged in ``--output=~/file`` and in quotes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments and expand paths."""
        remaining = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            ctx.params[name] = _expand_paths(value)
        return remaining


def _expand_paths(value: Any) -> Any:
    from marft.config.paths import expand_user

    if isinstance(value, list | tuple):
        return type(value)(map(_expand_paths, value))
    return expand_user(value) if isinstance(value, Path) else value


def expand_command_paths(commands: typer.Typer) -> None:
    """Let every command in a group, and in its inner groups, expand ``~`` in paths."""
    for command in commands.registered_commands:
        command.cls = ExpandPathsCommand
    for inner in commands.registered_groups:
        if inner.typer_instance is not None:
            expand_command_paths(inner.typer_instance)


@app.callback()
def _root_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
