"""docs/commands.md: every command with its help, arguments and options, from the command objects of ``marft``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

import marft.cli.main  # noqa: F401  (registers the commands)
from marft.cli.app import CommandGroup, app
from marft.common.packages import extra_for


def page() -> str:
    """Return the page."""
    root = typer.main.get_command(app)
    assert isinstance(root, CommandGroup)
    lines = [
        "# Commands",
        "",
        "Every command of `marft` with its arguments and options, grouped as in `marft --help`. `--help` after a",
        "command prints the same. (`python tools/site/pages.py` generates this page.)",
        "",
        "`[--KEY VALUE]...` in a usage line stands for [keys of a recipe](settings.md), such as `--training.steps 50`;",
        "for `check-env`, keys of the environment. `--debug`, with any command, prints the traceback of an error.",
    ]
    for title, members in root.commands_by_group().items():
        lines += ["", f"## {title}"] if members else []
        for name, command in members:
            lines += _section(command, name, extra_for("commands", name))
    return "\n".join(lines) + "\n"


def _section(command: Any, name: str, extra: str = "") -> list[str]:
    """Return the lines of a command, and of the commands inside it."""
    context = typer.Context(command, info_name=f"marft {name}")
    lines = ["", f"### `marft {name}`", ""]
    lines += [_escape(text) for text in (command.help or "").splitlines()]
    lines += ["", f"Installed by `marft[{extra}]`."] if extra else []
    keys = ["[--KEY VALUE]..."] if command.context_settings.get("ignore_unknown_options") else []
    usage = " ".join([*command.collect_usage_pieces(context), *keys])
    lines += ["", "```text", f"marft {name} {usage}", "```"]
    rows = list(_rows(command, context))
    if rows:
        lines += ["", "| argument or option | meaning | default |", "| --- | --- | --- |", *rows]
    for inner_name, inner in getattr(command, "commands", {}).items():
        lines += _section(inner, f"{name} {inner_name}")
    return lines


def _rows(command: Any, context: typer.Context) -> Iterator[str]:
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None or parameter.name == "help":
            continue
        default = parameter.default
        shown = "required" if parameter.required else "" if default in (None, False, "", 0, []) else f"`{default}`"
        meaning = parameter.help + (f" Environment variable: `{parameter.envvar}`." if parameter.envvar else "")
        yield f"| `{record[0]}` | {_escape(meaning)} | {shown} |"


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|")
