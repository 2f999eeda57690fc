"""Selection among recorded episodes, and the history of a task over the steps.

The functions need no task data, rewards or models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Literal, get_args

from marft.common.texts import one_line
from marft.common.types import Episode
from marft.config.settings import did_you_mean
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder, step_of

Order = Literal["", "worst", "best", "failed"]
ORDERS: tuple[Order, ...] = get_args(Order)


def ordered(episodes: Sequence[Episode], order: Order) -> list[Episode]:
    """Return the episodes in recorded order, by reward (scored ones only), or the unscored ones.

    Raises:
        ValueError: the order is invalid.
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is none of {', '.join(map(repr, ORDERS))}")
    if order == "failed":
        return [episode for episode in episodes if not episode.scored]
    if not order:
        return list(episodes)
    scored = [episode for episode in episodes if episode.scored]
    return sorted(scored, key=lambda episode: episode.total_reward, reverse=order == "best")


def dropped(episodes: Sequence[Episode]) -> list[tuple[str, int]]:
    """Return the reasons for unscored episodes with their counts, the most frequent first."""
    reasons = Counter(f"{one_line(e.status)}: {one_line(e.error)}" for e in episodes if not e.scored)
    return reasons.most_common()


def answer_of(episode: Episode, answering: Collection[str]) -> str:
    """Return the answer: the last text of an answering agent, else the last text; "" without actions."""
    texts = [action.text for action in episode.actions if action.agent in answering]
    return (texts or [action.text for action in episode.actions] or [""])[-1]


def over_steps(folder: RunFolder, task: str) -> list[tuple[int, Episode]]:
    """Return every recorded attempt at a task with its step, oldest first.

    Args:
        task: ``id`` or ``id#sample``.

    Raises:
        ValueError: no recorded episode is an attempt at the task.
    """
    folder.recorded(0)
    found: list[tuple[int, Episode]] = []
    for path in folder.recorded_steps():
        found += [(step_of(path), episode) for episode in attempts_at(read_of(path, task), task)]
    if not found:
        known = {episode.task.id for episode in read_episodes(folder.recorded(0))}
        raise ValueError(f"no recorded episode is of task {task!r}{did_you_mean(task, known)}")
    return found


def read_of(path: Path, task: str) -> list[Episode]:
    """Read possible attempts at a task from a file.

    The result may include other tasks' episodes. It has all episodes of the file if ``task`` is "".
    """
    if "#" not in task:
        return read_episodes(path, task)
    return [*read_episodes(path, task), *read_episodes(path, task.rpartition("#")[0])]


def attempts_at(episodes: Sequence[Episode], task: str) -> list[Episode]:
    """Return the attempts at a task, given as ``id`` or ``id#sample``."""
    return [e for e in episodes if task in (e.task.id, f"{e.task.id}#{e.sample}")]


def difference(before: str, after: str, names: tuple[str, str]) -> list[str]:
    r"""Return a unified diff of two texts, line by line; empty for equal texts.

    >>> difference("a\nb", "a\nc", ("step 1", "step 9"))[2:]
    ['@@ -1,2 +1,2 @@', ' a', '-b', '+c']
    """
    return list(unified_diff(before.split("\n"), after.split("\n"), *names, lineterm=""))
