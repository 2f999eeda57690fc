"""Checks for tasks: usable, plain and stable."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from marft.common.faults import described
from marft.common.types import Task
from marft.config.settings import DEEPEST
from marft_envs.vetting.evidence import Evidence
from marft_envs.vetting.findings import Finding, some
from marft_envs.vetting.loading import plain

SIZE = 200_000  # maximum characters of a task's data: it is stored with every episode


def readable(evidence: Evidence) -> Iterator[Finding]:
    """Check that tasks load, and that each has a unique id and a prompt."""
    # errors of built-in environments include the remedy
    own = type(evidence.subject.environment).__module__.startswith("marft.envs.")
    remedy = "" if own else "tasks(split) returns a list of marft.common.types.Task for each of the three splits"
    for problem in dict.fromkeys(evidence.loaded.problems.values()):
        yield Finding("failure", problem, remedy)
    tasks = evidence.loaded.everything
    empty = [task.id for task in tasks if not task.prompt.strip()]
    if empty:
        yield Finding("failure", f"{some(empty)}: the prompt is empty", "say in the prompt what is to be done")
    seen, twice = set[str](), list[str]()
    for task in tasks:
        twice += [task.id] if task.id in seen else []
        seen.add(task.id)
    if twice:
        yield Finding("failure", f"two splits have tasks with the id {some(twice)}", "name the split in the id")


def stable(evidence: Evidence) -> Iterator[Finding]:
    """Check that repeated calls return the same tasks per split."""
    if evidence.loaded.changed:
        yield Finding(
            "failure",
            f"tasks({evidence.loaded.changed[0]!r}) gives other tasks the second time",
            "draw them from a random.Random of the environment's own seed, once, and keep them",
        )


def portable(evidence: Evidence) -> Iterator[Finding]:
    """Check that data is plain, for storage with episodes and transfer to other processes."""
    tasks = evidence.loaded.everything
    remedy = "keep texts, numbers, lists and dictionaries in Task.data; what is made of them belongs to the session"
    odd = [(task, why) for task in tasks if (why := not_plain(task.data))]
    if odd:
        yield Finding("failure", f"the data of {some([task.id for task, _ in odd])} is not plain: {odd[0][1]}", remedy)
    shaken = [(task, why) for task in tasks[:1000] if not odd and (why := _does_not_pickle(task))]
    if shaken:
        yield Finding("failure", f"{some([task.id for task, _ in shaken])} cannot be pickled: {shaken[0][1]}", remedy)
    large = [task.id for task in tasks[:1000] if not odd and len(json.dumps(plain(task.data))) > SIZE]
    if large:
        yield Finding(
            "warning",
            f"the data of {some(large)} has over {SIZE:,} characters",
            "it is stored with every episode; keep less",
        )


def not_plain(value: Any, place: str = "data", depth: int = 0) -> str:
    """Return the reason if a value is not plain; "" if it is.

    >>> not_plain({"words": ["a", 1]}), not_plain({"words": {"a"}})
    ('', "data['words'] is a set")
    """
    if value is None or type(value) in (str, bool, int, float):
        return ""
    if depth > DEEPEST:
        return f"more than {DEEPEST} tables and lists are inside each other"
    if isinstance(value, dict):
        strangers = [key for key in value if not isinstance(key, str)]
        if strangers:
            return f"{place} has the key {strangers[0]!r}, which is no text"
        return next(
            (why for key, inner in value.items() if (why := not_plain(inner, f"{place}[{key!r}]", depth + 1))), ""
        )
    if isinstance(value, Sequence) and isinstance(value, list | tuple):
        return next(
            (why for at, inner in enumerate(value) if (why := not_plain(inner, f"{place}[{at}]", depth + 1))), ""
        )
    return f"{place} is a {type(value).__name__}"


def _does_not_pickle(task: Task) -> str:
    try:
        return "" if pickle.loads(pickle.dumps(task)) == task else "what comes back is another one"
    except (pickle.PickleError, TypeError, AttributeError, ValueError) as error:
        return described(error)
