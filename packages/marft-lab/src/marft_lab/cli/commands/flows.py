"""Options for the command ``marft flow``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, command_group

app = command_group(name="flow", help="Grow, tune and show flow networks.", no_args_is_help=True)


@app.command()
def grow(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs with recorded episodes.")],
    output: Annotated[Path, typer.Option(help="Network file to write.")] = Path("network.json"),
    threshold: Annotated[float, typer.Option(min=-1, max=1, help="Minimum cosine similarity to join a node.")] = 0.5,
    min_actions: Annotated[
        int, typer.Option(min=1, help="Minimum number of actions per node; smaller nodes are removed.")
    ] = 1,
    exclude_role: Annotated[
        list[str] | None, typer.Option(help="Role without nodes, such as a router; repeatable.")
    ] = None,
    embed: Annotated[
        str, typer.Option(help='Embedding function of texts, as module:function; "": hashed word pieces.')
    ] = "",
    dimensions: Annotated[int, typer.Option(min=8, max=8192, help="Length of the embedding vectors.")] = 256,
    extend: Annotated[Path | None, typer.Option(help="Network file to extend, with its own threshold.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
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
    recipe: Annotated[Path, typer.Argument(help="Recipe with team.organization = 'flow'.")],
    output: Annotated[Path, typer.Option(help="Network file to write.")] = Path("tuned.json"),
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps of path learning; 0: no path learning.")] = 40,
    batch: Annotated[int, typer.Option(min=2, help="Episodes per step.")] = 64,
    critic: Annotated[
        str, typer.Option(help='Policy of the recipe that proposes instructions; "": no rewording.')
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of rewording.")] = 3,
    tolerance: Annotated[
        float, typer.Option(max=1, help="Held-out success rate that all skips together may cost; below 0: no skips.")
    ] = 0.01,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
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
    network: Annotated[Path, typer.Argument(help="Network file.")],
    picture: Annotated[Path | None, typer.Option(help="Picture to write, as .svg or .png.")] = None,
) -> None:
    """Print a network: its nodes, and the changes tried on the network."""
    from marft_lab.cli import flows as asked

    asked.show(network, picture)
