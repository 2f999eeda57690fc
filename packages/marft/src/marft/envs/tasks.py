"""Loading and validation of an environment's tasks, built in or from user code."""

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
    """Empty split in an otherwise valid environment."""


def tasks_of(environment: Plugin, split: Split) -> Sequence[Task]:
    """Return the tasks in a split, validated.

    Raises:
        NoTasksError: the split is empty.
        ValueError: the tasks cannot be read, a task is invalid, or two have the same id: groups, records and random
            streams depend on it.
    """
    where = f"environment {environment.name!r}, {WORDS[split]} split"
    try:
        tasks = cast("Environment", environment).tasks(split)
        found = list(tasks)
    except Exception as error:
        # a built-in environment's error already names the problem
        if isinstance(error, ValueError) and not place_of(error):
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
    """Check the step limit against the tasks' ``fewest_steps``: at least one task must fit.

    Args:
        most: maximum steps of an episode.

    Raises:
        ValueError: every task needs more steps.
    """
    fewest = [task.data.get("fewest_steps") for task in tasks]
    needed = [steps for steps in fewest if isinstance(steps, int)]
    if len(needed) == len(tasks) and min(needed) > most:
        raise ValueError(
            f"rollout.max_steps: an episode ends after {most} steps, and no task can be solved in less than "
            f"{min(needed)} (fewest_steps of its data); allow {max(needed)} or more"
        )


def digest_of(tasks: Sequence[Task]) -> str:
    """Return a short digest of ids, prompts and plain data: equal for equal tasks, in any process."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps([task.id, task.prompt, _plain(task.data)], sort_keys=True).encode())
    return digest.hexdigest()


def _plain(data: object) -> object:
    """Return the texts and numbers in data, in tables and lists at any depth; other values become None."""
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
