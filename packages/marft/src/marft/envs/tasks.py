"""Loading and validation of an environment's tasks, built in or from user code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from marft.agents.environment_calls import RefusedError, read_step_info
from marft.common.error_origin import describe_error, error_location
from marft.common.errors import UserError
from marft.common.texts import replace_surrogates
from marft.common.types import Task
from marft.config.interfaces.environment import Environment, Split

DIGEST_KEY = "content_digest"  # key in a task's data
DIGEST_LENGTH = 16  # number of hexadecimal digits
EMPTY_SPLIT_HINT = (
    "; where each task's own text says which split it is in (80 % training, 10 % validation, 10 % test), a few may "
    "leave one empty: give it more, or name held-out ones, such as test_path of 'math' or test of 'table'"
)
SPLIT_LABELS = {"train": "training", "validation": "validation", "test": "test"}


def digest_content(*parts: str | bytes) -> str:
    """Return a digest of parts in order; the boundaries between parts count.

    >>> digest_content("ab", "c") == digest_content("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        plain = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(plain).to_bytes(8, "big"))
        digest.update(plain)
    return digest.hexdigest()[:DIGEST_LENGTH]


class NoTasksError(UserError):
    """Empty split in an otherwise valid environment."""


def read_tasks(environment: Environment, split: Split) -> Sequence[Task]:
    """Return the tasks in a split, validated.

    Raises:
        NoTasksError: the split is empty.
        UserError: the tasks cannot be read, a task is invalid, or two have the same id: groups, records and random
            streams depend on it.
    """
    location = f"environment {environment.name!r}, {SPLIT_LABELS[split]} split"
    try:
        tasks = environment.tasks(split)
        task_list = list(tasks)
    except Exception as error:
        # a built-in environment's error already names the problem
        if isinstance(error, ValueError) and not error_location(error):
            raise
        raise UserError(f"{location}: tasks({split!r}) raised {describe_error(error)}") from error
    if not hasattr(tasks, "__len__") or not hasattr(tasks, "__getitem__"):
        raise UserError(f"{location}: tasks({split!r}) returned a {type(tasks).__name__}, not a list of tasks")
    if not task_list:
        raise NoTasksError(f"{location} has no tasks{EMPTY_SPLIT_HINT}")
    seen: set[str] = set()
    for index, task in enumerate(task_list):
        problem = _find_problem(task) or (_duplicate_message(task) if task.id in seen else "")
        if problem:
            raise UserError(f"{location}, task {index}: {problem}")
        seen.add(task.id)
    return tasks


def check_step_limit(tasks: Sequence[Task], max_steps: int) -> None:
    """Check the step limit against the tasks' ``fewest_steps``: at least one task must fit.

    Args:
        max_steps: maximum steps of an episode.

    Raises:
        UserError: every task needs more steps.
    """
    min_steps = [task.data.get("fewest_steps") for task in tasks]
    known_min_steps = [steps for steps in min_steps if isinstance(steps, int)]
    if len(known_min_steps) == len(tasks) and min(known_min_steps) > max_steps:
        raise UserError(
            f"rollout.max_steps: an episode ends after {max_steps} steps, and no task can be solved in less than "
            f"{min(known_min_steps)} (fewest_steps of its data); allow {max(known_min_steps)} or more"
        )


def digest_tasks(tasks: Sequence[Task]) -> str:
    """Return a short digest of ids, prompts and plain data: equal for equal tasks, in any process."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps([task.id, task.prompt, _json_data(task.data)], sort_keys=True).encode())
    return digest.hexdigest()


def _json_data(data: object) -> object:
    """Return the texts and numbers in data, in tables and lists at any depth; other values become None."""
    match data:
        case Mapping():
            return {str(key): _json_data(value) for key, value in data.items()}
        case list() | tuple():
            return [_json_data(value) for value in data]
        case str() | int() | float():
            return data
    return None


def _duplicate_message(task: Task) -> str:
    return f"another one has the id {task.id!r} too; groups and records go by it, so give each task its own"


def _find_problem(task: object) -> str:
    if not isinstance(task, Task):
        return f"it is a {type(task).__name__}, not a marft.common.types.Task"
    for name in ("id", "prompt"):
        text = getattr(task, name)
        if not isinstance(text, str):
            return f"its {name} is a {type(text).__name__}, not a text"
        if replace_surrogates(text) != text:
            return f"its {name} is no whole text: {ascii(text)[:100]}"
    try:
        read_step_info({}, task.data)
    except RefusedError as error:
        return f"its data {error}"
    return "" if task.id else "its id is empty"
