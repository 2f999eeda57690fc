"""Commands for engines with a separate Python environment."""

from __future__ import annotations

from typing import Annotated

import typer

from marft.cli.app import app, command_group

engines = command_group(name="engine", help="Engines with a Python environment of their own.", no_args_is_help=True)
app.add_typer(engines)


@engines.command()
def install(
    engine: Annotated[str, typer.Argument(help="vllm.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="The build for processors, instead of CUDA's.")] = False,
) -> None:
    """Create the Python environment of an engine.

    Replaces an existing one. Location: ~/.local/share/marft (or XDG_DATA_HOME). Needs gigabytes of space and some
    minutes.
    """
    from marft.cli import engines as commands

    commands.install_engine(engine, cpu=cpu)
