"""Plot of a network: nodes from source to sink, with the likeliest path of each context in its own color."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from marft.common.texts import single_line, truncate
from marft.evaluation.html_pages import disable_math_text
from marft_lab.flows.edge_policy import active_nodes, sample_path
from marft_lab.flows.network import ANY, SINK, SOURCE, FlowNetwork

MAX_PATH_NODES = 32  # maximum nodes of a plotted path
MAX_LABEL_CHARS = 26  # maximum characters of a label
Position = tuple[float, float]


@disable_math_text()
def plot_network(network: FlowNetwork) -> Figure:
    """Plot every node and edge of a network; the line width of an edge grows with its count.

    For each context, the likeliest path is drawn in color, without skipped nodes. Nodes on no such path are white.
    """
    contexts = [context.name for context in network.contexts] or [ANY]
    paths = {name: sample_path(network, name, MAX_PATH_NODES, 0.0, Random(0)) for name in contexts}
    active_paths = {name: active_nodes(network, name, path) for name, path in paths.items()}
    positions = _node_positions(network, list(paths.values()))
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.subplots()
    max_count = max(edge.count for edge in network.edges)
    for edge in network.edges:
        relative_count = edge.count / max_count
        _draw_arrow(axes, positions[edge.start], positions[edge.end], "0.75", 0.3 + 1.2 * relative_count, 0.08)
    for number, (name, path) in enumerate(active_paths.items()):
        steps = [SOURCE, *path, SINK]
        for start, end in pairwise(steps):
            _draw_arrow(axes, positions[start], positions[end], f"C{number % 10}", 2.0, 0.14 + 0.05 * number)
        axes.plot([], [], color=f"C{number % 10}", label=truncate(single_line(name), MAX_LABEL_CHARS) or "any task")
    used_nodes = {name for path in active_paths.values() for name in path} | {SOURCE, SINK}
    for name, (x, y) in positions.items():
        box = {"boxstyle": "round", "facecolor": "0.92" if name in used_nodes else "white", "edgecolor": "0.5"}
        axes.text(
            x, y, truncate(single_line(name), MAX_LABEL_CHARS), ha="center", va="center", fontsize=8, bbox=box, zorder=5
        )
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=4)
    axes.set_xlim(-0.08, 1.08)
    axes.set_ylim(-0.08, 1.08)
    axes.set_axis_off()
    return figure


def _node_positions(network: FlowNetwork, paths: Sequence[Sequence[str]]) -> dict[str, Position]:
    """Return the position of each node: from left to right by mean progress along the paths, in rows."""
    progress = dict.fromkeys((node.name for node in network.nodes), 0.5)
    for name in progress:
        fractions = [(path.index(name) + 1) / (len(path) + 1) for path in paths if name in path]
        if fractions:
            progress[name] = sum(fractions) / len(fractions)
    order = sorted(progress, key=lambda name: (progress[name], name))
    columns = max(3, round(len(order) ** 0.5))
    rows = -(-len(order) // columns)
    positions: dict[str, Position] = {SOURCE: (0.0, 0.5), SINK: (1.0, 0.5)}
    for number, name in enumerate(order):
        column, row = divmod(number, rows)
        positions[name] = ((column + 1) / (columns + 1), 1 - (row + 0.5 + 0.25 * (column % 2)) / (rows + 0.25))
    return positions


def _draw_arrow(axes: Axes, start: Position, end: Position, color: str, width: float, curvature: float) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9,
            color=color,
            linewidth=width,
            shrinkA=14,
            shrinkB=14,
            connectionstyle=f"arc3,rad={curvature}",
            zorder=1 if color.startswith("0") else 3,
        )
    )
