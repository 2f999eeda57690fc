"""Information flow in an episode, as a figure and as a terminal table."""

from __future__ import annotations

import re

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from rich.table import Table
from rich.text import Text

from marft.common.texts import single_line, truncate
from marft.common.types import Action, Episode
from marft.evaluation.html_pages import disable_math_text
from marft.evaluation.transcripts import find_new_actions

WIDTH = 48  # width of a timeline in the terminal, in characters
COLORS = tuple(f"C{number}" for number in range(10))
MAX_NAME_LENGTH = 80  # maximum length of an ID or role in a figure or file name, in characters
MIN_WIDTH = 0.004  # minimum width of an action in a figure, as a fraction of the whole time


def build_timeline(episode: Episode) -> Table:
    """Return a table with one action a row, in request order, with its time span and newly seen actions."""
    table = Table(box=None, pad_edge=False)
    for title in ("action", f"0 s{'':{WIDTH - 9}}{_end_time(episode):5.2f} s", "sees"):
        table.add_column(title, no_wrap=True)
    roles, by_id = _roles(episode), {action.id: action for action in episode.actions}
    for action in episode.actions:
        start, length = _bar_position(episode, action)
        bar = Text(" " * start + "█" * length, style=f"color({1 + roles.index(action.agent) % 6})")
        table.add_row(Text(single_line(action.id)), bar, Text(single_line(", ".join(find_new_actions(action, by_id)))))
    return table


def to_file_name(task: str) -> str:
    r"""Convert a task ID into text for portable file names.

    >>> to_file_name("chain_sum/17"), to_file_name("../\x00x")
    ('chain_sum_17', '.._x')
    """
    return re.sub(r"[^\w.#-]+", "_", task)[:MAX_NAME_LENGTH]


@disable_math_text()
def draw_episode(episode: Episode) -> Figure:
    """Draw agents as lanes over time, with an arrow from each action to the actions that saw it."""
    roles, end = _roles(episode), _end_time(episode)
    figure = Figure(figsize=(10, 0.8 + 0.6 * len(roles)), layout="constrained")
    axes = figure.subplots()
    middle: dict[str, tuple[float, float, float]] = {}  # by action ID: start, end, lane
    for action in episode.actions:
        lane = len(roles) - 1 - roles.index(action.agent)
        width = max(action.ended - action.started, MIN_WIDTH * end)
        color = COLORS[roles.index(action.agent) % len(COLORS)]
        axes.add_patch(Rectangle((action.started, lane - 0.25), width, 0.5, color=color, alpha=0.75))
        axes.annotate(
            f"{action.step}.{action.key.call}",
            (action.started + width / 2, lane),
            ha="center",
            va="center",
            fontsize=7,
            color="white",
            clip_on=True,
        )
        middle[action.id] = (action.started, action.started + width, lane)
    by_id = {action.id: action for action in episode.actions}
    for action in episode.actions:
        for seen in find_new_actions(action, by_id):
            if seen in middle:
                _, tail, tail_lane = middle[seen]
                head, _, head_lane = middle[action.id]
                axes.add_patch(
                    FancyArrowPatch(
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
                )
    axes.set_xlim(-0.01 * end, 1.02 * end)
    axes.set_ylim(-0.6, len(roles) - 0.4)
    axes.set_yticks(range(len(roles)), [truncate(single_line(role), MAX_NAME_LENGTH) for role in reversed(roles)])
    axes.set_xlabel("seconds since the episode began; a box is an action (step.call), an arrow leads to who saw it")
    axes.set_title(
        f"{truncate(single_line(episode.task.id), MAX_NAME_LENGTH)} #{episode.sample}", fontsize=10, loc="left"
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _roles(episode: Episode) -> list[str]:
    """Return the agents in the order of their first actions."""
    return list(dict.fromkeys(action.agent for action in episode.actions))


def _end_time(episode: Episode) -> float:
    return max((action.ended for action in episode.actions), default=0.0) or 1.0


def _bar_position(episode: Episode, action: Action) -> tuple[int, int]:
    """Return the first character and the length of an action's bar."""
    scale = WIDTH / _end_time(episode)
    start = min(WIDTH - 1, int(action.started * scale))
    return start, max(1, min(WIDTH, round(action.ended * scale)) - start)
