"""Options for the command ``marft flow``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, command_group

app = command_group(name="flow", help="Flow networks: grown from runs, played by a team.", no_args_is_help=True)


@app.command()
def grow(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, with recorded episodes.")],
    output: Annotated[Path, typer.Option(help="The file of the network.")] = Path("network.json"),
    threshold: Annotated[float, typer.Option(min=-1, max=1, help="Cosine from which on two actions are alike.")] = 0.5,
    min_actions: Annotated[int, typer.Option(min=1, help="Actions that a node needs to stay.")] = 1,
    exclude_role: Annotated[
        list[str] | None, typer.Option(help="A role that plays no node: a router; repeat it.")
    ] = None,
    embed: Annotated[str, typer.Option(help='module:function of texts to vectors; "": hashed pieces of words.')] = "",
    dimensions: Annotated[int, typer.Option(min=8, max=8192, help="Of a vector.")] = 256,
    extend: Annotated[Path | None, typer.Option(help="A network that grows on, with its own threshold.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Let a file go that is there.")] = False,
) -> None:
    """Grow a flow network from successful episodes of runs.

    Each action joins the most similar node of its role, or creates a new node.
    """
    from marft_lab.cli import flows as asked
    from marft_lab.flows.growth import GrowthOptions

    growth = GrowthOptions(
        threshold, min_actions, excluded_roles=frozenset(exclude_role or ()), dimensions=dimensions, embed=embed
    )
    asked.check_free(output, overwrite or output == extend)
    asked.grow(runs, output, growth, extend)


@app.command(context_settings=OVERRIDE_CONTEXT)
def tune(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe whose team plays a network: team.organization = 'flow'.")],
    output: Annotated[Path, typer.Option(help="The file of the better network.")] = Path("tuned.json"),
    steps: Annotated[int, typer.Option(min=0, help="Of learning paths; 0: none.")] = 40,
    batch: Annotated[int, typer.Option(min=2, help="Episodes of a step.")] = 64,
    critic: Annotated[str, typer.Option(help='A policy of the recipe that proposes instructions; "": none.')] = "",
    rounds: Annotated[int, typer.Option(min=1, help="In which it is asked about what failed.")] = 3,
    tolerance: Annotated[
        float, typer.Option(max=1, help="Of held-out success that skips may cost together; below 0: none are tried.")
    ] = 0.01,
    overwrite: Annotated[bool, typer.Option(help="Let a file go that is there.")] = False,
) -> None:
    """Tune a network by playing episodes.

    The command learns path probabilities, lets a critic reword node instructions, and skips nodes without benefit.
    Changes to nodes are accepted on held-out tasks. Override any setting as in train.
    """
    from marft.cli import options
    from marft_lab.cli import flows as asked

    asked.check_free(output, overwrite)
    tuning = asked.TuningOptions(steps, batch, critic, rounds, tolerance)
    asked.tune(recipe, options.parse_overrides(context, recipe), output, tuning)


@app.command()
def show(
    network: Annotated[Path, typer.Argument(help="The file of a network.")],
    picture: Annotated[Path | None, typer.Option(help="Draw it: a file that ends in .svg or .png.")] = None,
) -> None:
    """Print a network: its nodes, and the changes tried on the network."""
    from marft_lab.cli import flows as asked

    asked.show(network, picture)
