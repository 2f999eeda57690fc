"""Plot of a network: nodes from source to sink, with the likeliest path of each context in its own color."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from marft.common.texts import cut, one_line
from marft.evaluation.pages import plain_labels
from marft_lab.flows.choosing import played_of, walk
from marft_lab.flows.network import ANY, SINK, SOURCE, FlowNetwork

MOST = 32  # maximum nodes of a plotted path
SHOWN = 26  # maximum characters of a label
Place = tuple[float, float]


@plain_labels()
def picture(network: FlowNetwork) -> Figure:
    """Plot every node and edge of a network; the line width of an edge grows with its count.

    For each context, the likeliest path is drawn in color, without skipped nodes. Nodes on no such path are white.
    """
    contexts = [context.name for context in network.contexts] or [ANY]
    paths = {name: walk(network, name, MOST, 0.0, Random(0)) for name in contexts}
    acting = {name: played_of(network, name, path) for name, path in paths.items()}
    places = _places(network, list(paths.values()))
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.subplots()
    most = max(edge.count for edge in network.edges)
    for edge in network.edges:
        strength = edge.count / most
        _arrow(axes, places[edge.start], places[edge.end], "0.75", 0.3 + 1.2 * strength, 0.08)
    for number, (name, path) in enumerate(acting.items()):
        steps = [SOURCE, *path, SINK]
        for start, end in pairwise(steps):
            _arrow(axes, places[start], places[end], f"C{number % 10}", 2.0, 0.14 + 0.05 * number)
        axes.plot([], [], color=f"C{number % 10}", label=cut(one_line(name), SHOWN) or "any task")
    busy = {name for path in acting.values() for name in path} | {SOURCE, SINK}
    for name, (x, y) in places.items():
        box = {"boxstyle": "round", "facecolor": "0.92" if name in busy else "white", "edgecolor": "0.5"}
        axes.text(x, y, cut(one_line(name), SHOWN), ha="center", va="center", fontsize=8, bbox=box, zorder=5)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=4)
    axes.set_xlim(-0.08, 1.08)
    axes.set_ylim(-0.08, 1.08)
    axes.set_axis_off()
    return figure


def _places(network: FlowNetwork, paths: Sequence[Sequence[str]]) -> dict[str, Place]:
    """Return the position of each node: from left to right by mean progress along the paths, in rows."""
    along = dict.fromkeys((node.name for node in network.nodes), 0.5)
    for name in along:
        found = [(path.index(name) + 1) / (len(path) + 1) for path in paths if name in path]
        if found:
            along[name] = sum(found) / len(found)
    order = sorted(along, key=lambda name: (along[name], name))
    columns = max(3, round(len(order) ** 0.5))
    rows = -(-len(order) // columns)
    places: dict[str, Place] = {SOURCE: (0.0, 0.5), SINK: (1.0, 0.5)}
    for number, name in enumerate(order):
        column, row = divmod(number, rows)
        places[name] = ((column + 1) / (columns + 1), 1 - (row + 0.5 + 0.25 * (column % 2)) / (rows + 0.25))
    return places


def _arrow(axes: Axes, start: Place, end: Place, colour: str, width: float, bend: float) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=width, shrinkA=14, shrinkB=14,
            connectionstyle=f"arc3,rad={bend}", zorder=1 if colour.startswith("0") else 3,
        )
    )  # fmt: skip
