"""Checks for tasks: usable, plain and stable."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from marft.common.error_origin import describe_error
from marft.common.types import Task
from marft.config.settings import MAX_DEPTH
from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.loading import to_json_types
from marft_envs.env_check.report import Finding, summarize

MAX_DATA = 200_000  # maximum characters of a task's data: it is stored with every episode


def check_readable(data: CheckData) -> Iterator[Finding]:
    """Check that tasks load, and that each has a unique id and a prompt."""
    # errors of built-in environments include the remedy
    is_bundled = type(data.target.environment).__module__.startswith("marft.envs.")
    hint = "" if is_bundled else "tasks(split) returns a list of marft.common.types.Task for each of the three splits"
    for problem in dict.fromkeys(data.loaded.problems.values()):
        yield Finding("failure", problem, hint)
    tasks = data.loaded.all_tasks
    empty = [task.id for task in tasks if not task.prompt.strip()]
    if empty:
        yield Finding("failure", f"{summarize(empty)}: the prompt is empty", "say in the prompt what is to be done")
    seen, duplicates = set[str](), list[str]()
    for task in tasks:
        duplicates += [task.id] if task.id in seen else []
        seen.add(task.id)
    if duplicates:
        yield Finding(
            "failure", f"two splits have tasks with the id {summarize(duplicates)}", "name the split in the id"
        )


def check_stable(data: CheckData) -> Iterator[Finding]:
    """Check that repeated calls return the same tasks per split."""
    if data.loaded.changed:
        yield Finding(
            "failure",
            f"tasks({data.loaded.changed[0]!r}) gives other tasks the second time",
            "draw them from a random.Random of the environment's own seed, once, and keep them",
        )


def check_portable(data: CheckData) -> Iterator[Finding]:
    """Check that data is plain, for storage with episodes and transfer to other processes."""
    tasks = data.loaded.all_tasks
    hint = "keep texts, numbers, lists and dictionaries in Task.data; what is made of them belongs to the session"
    not_plain_tasks = [(task, problem) for task in tasks if (problem := find_not_plain(task.data))]
    if not_plain_tasks:
        yield Finding(
            "failure",
            f"the data of {summarize([task.id for task, _ in not_plain_tasks])} is not plain: {not_plain_tasks[0][1]}",
            hint,
        )
    not_pickled = [
        (task, problem) for task in tasks[:1000] if not not_plain_tasks and (problem := _pickle_problem(task))
    ]
    if not_pickled:
        yield Finding(
            "failure", f"{summarize([task.id for task, _ in not_pickled])} cannot be pickled: {not_pickled[0][1]}", hint
        )
    large = [
        task.id for task in tasks[:1000] if not not_plain_tasks and len(json.dumps(to_json_types(task.data))) > MAX_DATA
    ]
    if large:
        yield Finding(
            "warning",
            f"the data of {summarize(large)} has over {MAX_DATA:,} characters",
            "it is stored with every episode; keep less",
        )


def find_not_plain(value: Any, path: str = "data", depth: int = 0) -> str:
    """Return the reason if a value is not plain; "" if it is.

    >>> find_not_plain({"words": ["a", 1]}), find_not_plain({"words": {"a"}})
    ('', "data['words'] is a set")
    """
    if value is None or type(value) in (str, bool, int, float):
        return ""
    if depth > MAX_DEPTH:
        return f"more than {MAX_DEPTH} tables and lists are inside each other"
    if isinstance(value, dict):
        bad_keys = [key for key in value if not isinstance(key, str)]
        if bad_keys:
            return f"{path} has the key {bad_keys[0]!r}, which is no text"
        return next(
            (
                problem
                for key, inner in value.items()
                if (problem := find_not_plain(inner, f"{path}[{key!r}]", depth + 1))
            ),
            "",
        )
    if isinstance(value, Sequence) and isinstance(value, list | tuple):
        return next(
            (
                problem
                for at, inner in enumerate(value)
                if (problem := find_not_plain(inner, f"{path}[{at}]", depth + 1))
            ),
            "",
        )
    return f"{path} is a {type(value).__name__}"


def _pickle_problem(task: Task) -> str:
    try:
        return "" if pickle.loads(pickle.dumps(task)) == task else "what comes back is another one"
    except (pickle.PickleError, TypeError, AttributeError, ValueError) as error:
        return describe_error(error)
