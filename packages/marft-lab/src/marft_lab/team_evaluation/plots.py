"""Comparison plots: differences to the team, cross-play, and actions' contributions."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from marft.common.texts import single_line, truncate
from marft.common.types import Episode
from marft.evaluation.episode_graph import MAX_NAME_LENGTH, MIN_WIDTH
from marft.evaluation.html_pages import disable_math_text, to_svg
from marft.evaluation.transcripts import find_new_actions
from marft_lab.team_evaluation.counterfactual import ActionContribution, AgentContribution
from marft_lab.team_evaluation.policy_swaps import CrossPlayMatrix
from marft_lab.team_evaluation.scores import Measure, ResultRow
from marft_lab.team_evaluation.tables import measure_formatters

CONTRIBUTION_COLORS = mpl.colormaps["RdYlGn"]


@disable_math_text()
def plot_differences(rows: Sequence[ResultRow], measure: Measure) -> Figure:
    """Plot the difference of every arm to the team, with its interval if known."""
    values = [(row.name, row.values[measure]) for row in rows if measure in row.values]
    known = [(name, v.difference, v.difference_interval) for name, v in values if v.difference is not None]
    scale = 100.0 if measure == "accuracy" else 1.0
    figure = Figure(figsize=(8, 0.9 + 0.3 * max(1, len(known))), layout="constrained")
    axes = figure.subplots()
    for position, (_, difference, interval) in enumerate(reversed(known)):
        low, high = interval or (difference, difference)
        color = "C2" if low > 0 else "C3" if high < 0 else "0.45"
        axes.plot([scale * low, scale * high], [position, position], color=color, linewidth=2)
        axes.plot(scale * difference, position, "o", color=color, markersize=5)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_yticks(range(len(known)), [_short_name(name) for name, *_ in reversed(known)])
    axes.set_xlabel(f"{measure} beside the team's" + (", in points" if measure == "accuracy" else ""))
    _hide_spines(axes)
    return figure


@disable_math_text()
def plot_cross_play(matrix: CrossPlayMatrix, measure: Measure) -> Figure:
    """Plot cross-play: a policy's checkpoints (rows) with the teammates' checkpoints (columns)."""
    formatter, _ = measure_formatters(measure)
    cells = [
        [row.values[measure].value if measure in row.values else float("nan") for row in rows] for rows in matrix.rows
    ]
    size = 1.6 + 0.9 * len(matrix.checkpoints)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.subplots()
    edges = [index - 0.5 for index in range(len(cells) + 1)]
    axes.pcolormesh(edges, edges, cells, cmap="Blues", vmin=0.0)
    axes.invert_yaxis()
    for y, line in enumerate(cells):
        for x, value in enumerate(line):
            axes.text(
                x,
                y,
                formatter(value) if value == value else "",
                ha="center",
                va="center",
                fontsize=9,
                color="black",
                bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1.5},
            )
    names = [_short_name(name) for name in matrix.checkpoints]
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel(_short_name(matrix.others))
    axes.set_ylabel(_short_name(matrix.policy))
    return figure


@disable_math_text()
def plot_variances(shares: Sequence[AgentContribution]) -> Figure:
    """Plot the variance of the reward by agent: total effect of an action, and its own part."""
    figure = Figure(figsize=(8, 0.9 + 0.45 * len(shares)), layout="constrained")
    axes = figure.subplots()
    for position, share in enumerate(reversed(shares)):
        for offset, value, color, label in (
            (0.12, share.variance, "C0", "it, and all that depends on it, sampled again"),
            (-0.12, share.own, "C1", "its own part"),
        ):
            if value is not None:
                low, high = value.interval or (value.value, value.value)
                axes.plot([low, high], [position + offset] * 2, color=color, linewidth=2)
                axes.plot(value.value, position + offset, "o", color=color, label=label if position == 0 else None)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_yticks(range(len(shares)), [_short_name(share.agent) for share in reversed(shares)])
    axes.set_xlabel("variance of the reward")
    axes.set_ylim(-0.6, len(shares) - 0.4)
    axes.legend(frameon=False, fontsize=8)
    _hide_spines(axes)
    return figure


@disable_math_text()
def plot_contributions(episode: Episode, contributions: Sequence[ActionContribution]) -> Figure:
    """Plot an episode's actions on a time axis, colored by contribution; gray without resamples."""
    by_action = {item.action: item.contribution for item in contributions}
    max_value = max((abs(value) for value in by_action.values()), default=0.0) or 1.0
    roles = list(dict.fromkeys(action.agent for action in episode.actions))
    end = max((action.ended for action in episode.actions), default=0.0) or 1.0
    figure = Figure(figsize=(9, 1.1 + 0.6 * len(roles)), layout="constrained")
    axes = figure.subplots()
    scale = Normalize(-max_value, max_value)
    ends: dict[str, tuple[float, float, int]] = {}
    for action in episode.actions:
        lane, width = len(roles) - 1 - roles.index(action.agent), max(action.ended - action.started, MIN_WIDTH * end)
        color = CONTRIBUTION_COLORS(scale(by_action[action.id])) if action.id in by_action else "0.8"
        axes.add_patch(Rectangle((action.started, lane - 0.27), width, 0.54, facecolor=color, edgecolor="0.4"))
        if action.id in by_action:
            axes.annotate(
                f"{by_action[action.id]:+.2f}",
                (action.started + width / 2, lane),
                ha="center",
                va="center",
                fontsize=8,
                color="black",
                clip_on=True,
                bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1.5},
            )
        ends[action.id] = (action.started, action.started + width, lane)
    _draw_arrows(axes, episode, ends)
    axes.set_xlim(-0.01 * end, 1.02 * end)
    axes.set_ylim(-0.6, len(roles) - 0.4)
    axes.set_yticks(range(len(roles)), [_short_name(role) for role in reversed(roles)])
    axes.set_xlabel("seconds since the episode began; numbers are contributions")
    axes.set_title(f"{_short_name(episode.task.id)}: reward {episode.total_reward:g}", fontsize=10, loc="left")
    _hide_spines(axes)
    return figure


def render_svg(figure: Figure) -> Markup:
    """Return a figure as reproducible SVG for a page."""
    with mpl.rc_context({"svg.hashsalt": "marft"}):
        return to_svg(figure)


def _draw_arrows(axes: Axes, episode: Episode, ends: dict[str, tuple[float, float, int]]) -> None:
    """Draw an arrow from each action to each reader."""
    by_id = {action.id: action for action in episode.actions}
    for action in episode.actions:
        for seen in find_new_actions(action, by_id):
            if seen in ends:
                _, tail, tail_lane = ends[seen]
                head, _, head_lane = ends[action.id]
                arrow = FancyArrowPatch(
                    (tail, tail_lane),
                    (head, head_lane),
                    arrowstyle="-|>",
                    mutation_scale=9,
                    color="0.35",
                    linewidth=0.9,
                    connectionstyle="arc3,rad=0.12",
                    shrinkA=0,
                    shrinkB=0,
                )
                axes.add_patch(arrow)


def _hide_spines(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _short_name(text: str) -> str:
    return truncate(single_line(text), MAX_NAME_LENGTH)
