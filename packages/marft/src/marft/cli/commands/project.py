"""Commands to create a project and to list available components."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import app


@app.command()
def init(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the files go, made where it is not there; my_team, or my_env.")
    ] = None,
    kind: Annotated[str, typer.Option(help="What to begin: a team, or an environment.")] = "team",
    data: Annotated[
        str | None, typer.Option(help="Your table: CSV, JSONL, Parquet; '' for a few invented rows.")
    ] = None,
    question: Annotated[str, typer.Option(help="Its column with the questions.")] = "",
    answer: Annotated[str | None, typer.Option(help="Its column with the right answers; '' for none.")] = None,
    model: Annotated[str, typer.Option(help="tiny (bundled), a folder, or a Hugging Face id.")] = "",
    team: Annotated[str, typer.Option(help="reasoner-actor, writer-critic, or single.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; take what is not named by default.")] = False,
) -> None:
    """Create a team or an environment.

    Writes a folder that can be trained at once. A team has a recipe, a reward function with its test, and some data. An
    environment has a package with its tests, and a recipe. Asks questions only on a terminal, and overwrites nothing.
    """
    from marft.cli import project_init as begin

    if begin.check_kind(kind) != begin.TEAM_KIND:
        begin.init_kind(kind, folder, [data, question, answer, model, team])
        return
    begin.init_team(folder or Path("my_team"), data, question, answer, model, team, yes)


@app.command()
def algorithms(
    name: Annotated[str, typer.Argument(help="A preset, to see every setting of it.")] = "",
) -> None:
    """List the algorithms, or print all settings of one."""
    from marft.cli import listings

    listings.list_algorithms(name)


@app.command()
def recipes(
    name: Annotated[str, typer.Argument(help="A bundled recipe, to print it as it is.")] = "",
) -> None:
    """List the bundled recipes, or print one.

    Train a recipe by its name, or copy one as a start: marft recipes demo > mine.toml
    """
    from marft.cli import listings

    listings.list_recipes(name)


@app.command()
def environments(
    name: Annotated[str, typer.Argument(help="An environment, to see its keys and what they take.")] = "",
) -> None:
    """List the environments, or print the keys of one."""
    from marft.cli import listings

    listings.list_environments(name)
