"""Reading the tasks of an environment, built in or somebody's own, and refusing those that cannot be used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import cast

from marft.agents.environment import Environment, Split
from marft.agents.reading import RefusedError, declared
from marft.common.faults import described, place_of
from marft.common.texts import storable
from marft.common.types import Task
from marft.config.plugins import Plugin

FEW = (
    "; where each task's own text says which split it is in (80 % training, 10 % validation, 10 % test), a few may "
    "leave one empty: give it more, or name held-out ones, such as test_path of 'math' or test of 'table'"
)
WORDS = {"train": "training", "validation": "validation", "test": "test"}


class NoTasksError(ValueError):
    """A split is empty, and nothing else is wrong with it."""


def tasks_of(environment: Plugin, split: Split) -> Sequence[Task]:
    """The tasks of a split.

    Raises:
        NoTasksError: there are none.
        ValueError: they cannot be read, one is no task, or two have the same id: groups, records and
            random streams go by it.
    """
    where = f"environment {environment.name!r}, {WORDS[split]} split"
    try:
        tasks = cast("Environment", environment).tasks(split)
        found = list(tasks)
    except Exception as error:
        if isinstance(error, ValueError) and not place_of(error):  # of a built-in one, which names what is wrong
            raise
        raise ValueError(f"{where}: tasks({split!r}) raised {described(error)}") from error
    if not hasattr(tasks, "__len__") or not hasattr(tasks, "__getitem__"):
        raise ValueError(f"{where}: tasks({split!r}) returned a {type(tasks).__name__}, not a list of tasks")
    if not found:
        raise NoTasksError(f"{where} has no tasks{FEW}")
    seen: set[str] = set()
    for index, task in enumerate(found):
        problem = _problem(task) or (_twice(task) if task.id in seen else "")
        if problem:
            raise ValueError(f"{where}, task {index}: {problem}")
        seen.add(task.id)
    return tasks


def refuse_too_few_steps(tasks: Sequence[Task], most: int) -> None:
    """
    Args:
        most: steps of an episode.

    Raises:
        ValueError: no task can be solved in them, by what the tasks say that they need.
    """
    fewest = [task.data.get("fewest_steps") for task in tasks]
    needed = [steps for steps in fewest if isinstance(steps, int)]
    if len(needed) == len(tasks) and min(needed) > most:
        raise ValueError(
            f"rollout.max_steps: an episode ends after {most} steps, and no task can be solved in less than "
            f"{min(needed)} (fewest_steps of its data); allow {max(needed)} or more"
        )


def digest_of(tasks: Sequence[Task]) -> str:
    """A short digest of ids, prompts and what of the data is plain: the same for the same tasks, in any process."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps([task.id, task.prompt, _plain(task.data)], sort_keys=True).encode())
    return digest.hexdigest()


def _plain(data: object) -> object:
    """What of data is words and numbers, in tables and lists at any depth; of anything else that it was there."""
    match data:
        case Mapping():
            return {str(key): _plain(value) for key, value in data.items()}
        case list() | tuple():
            return [_plain(value) for value in data]
        case str() | int() | float():
            return data
    return None


def _twice(task: Task) -> str:
    return f"another one has the id {task.id!r} too; groups and records go by it, so give each task its own"


def _problem(task: object) -> str:
    if not isinstance(task, Task):
        return f"it is a {type(task).__name__}, not a marft.common.types.Task"
    for name in ("id", "prompt"):
        text = getattr(task, name)
        if not isinstance(text, str):
            return f"its {name} is a {type(text).__name__}, not a text"
        if storable(text) != text:
            return f"its {name} is no whole text: {ascii(text)[:100]}"
    try:
        declared({}, task.data)
    except RefusedError as error:
        return f"its data {error}"
    return "" if task.id else "its id is empty"
