"""Selection among recorded episodes, and the history of a task over the steps.

The functions need no task data, rewards or models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Literal, get_args

from marft.common.texts import single_line
from marft.common.types import Episode
from marft.config.settings import did_you_mean
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder, parse_step

Order = Literal["", "worst", "best", "failed"]
ORDERS: tuple[Order, ...] = get_args(Order)


def sort_episodes(episodes: Sequence[Episode], order: Order) -> list[Episode]:
    """Return the episodes in recorded order, by reward (scored ones only), or the unscored ones.

    Raises:
        ValueError: the order is invalid.
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is none of {', '.join(map(repr, ORDERS))}")
    if order == "failed":
        return [episode for episode in episodes if not episode.is_scored]
    if not order:
        return list(episodes)
    scored = [episode for episode in episodes if episode.is_scored]
    return sorted(scored, key=lambda episode: episode.total_reward, reverse=order == "best")


def count_failure_reasons(episodes: Sequence[Episode]) -> list[tuple[str, int]]:
    """Return the reasons for unscored episodes with their counts, the most frequent first."""
    reasons = Counter(f"{single_line(e.status)}: {single_line(e.error)}" for e in episodes if not e.is_scored)
    return reasons.most_common()


def extract_answer(episode: Episode, answer_roles: Collection[str]) -> str:
    """Return the answer: the last text of an answering agent, else the last text; "" without actions."""
    texts = [action.text for action in episode.actions if action.agent in answer_roles]
    return (texts or [action.text for action in episode.actions] or [""])[-1]


def read_task_history(folder: RunFolder, task: str) -> list[tuple[int, Episode]]:
    """Return every recorded attempt at a task with its step, oldest first.

    Args:
        task: ``id`` or ``id#sample``.

    Raises:
        ValueError: no recorded episode is an attempt at the task.
    """
    folder.find_recorded(0)
    history: list[tuple[int, Episode]] = []
    for path in folder.recorded_steps():
        history += [(parse_step(path), episode) for episode in select_attempts(read_task_episodes(path, task), task)]
    if not history:
        task_ids = {episode.task.id for episode in read_episodes(folder.find_recorded(0))}
        raise ValueError(f"no recorded episode is of task {task!r}{did_you_mean(task, task_ids)}")
    return history


def read_task_episodes(path: Path, task: str) -> list[Episode]:
    """Read possible attempts at a task from a file.

    The result may include other tasks' episodes. It has all episodes of the file if ``task`` is "".
    """
    if "#" not in task:
        return read_episodes(path, task)
    return [*read_episodes(path, task), *read_episodes(path, task.rpartition("#")[0])]


def select_attempts(episodes: Sequence[Episode], task: str) -> list[Episode]:
    """Return the attempts at a task, given as ``id`` or ``id#sample``."""
    return [e for e in episodes if task in (e.task.id, f"{e.task.id}#{e.sample}")]


def diff_texts(before: str, after: str, names: tuple[str, str]) -> list[str]:
    r"""Return a unified diff of two texts, line by line; empty for equal texts.

    >>> diff_texts("a\nb", "a\nc", ("step 1", "step 9"))[2:]
    ['@@ -1,2 +1,2 @@', ' a', '-b', '+c']
    """
    return list(unified_diff(before.split("\n"), after.split("\n"), *names, lineterm=""))
