"""Loading of an environment's tasks, twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from marft.common.error_origin import describe_error
from marft.common.types import Task
from marft.config.interfaces.environment import Environment, Split
from marft.config.settings import MAX_DEPTH
from marft.envs.tasks import read_tasks

SPLITS: Sequence[Split] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedTasks:
    """Tasks by split, with loading problems.

    Args:
        tasks: usable tasks by split.
        problems: reasons why a split could not be loaded.
        changed: splits that returned other tasks the second time.
        seconds: time of the first load, over all splits.
    """

    tasks: Mapping[Split, Sequence[Task]]
    problems: Mapping[Split, str] = field(default_factory=dict)
    changed: Sequence[Split] = ()
    seconds: float = 0.0

    @property
    def all_tasks(self) -> list[Task]:
        """Return the tasks from every split."""
        return [task for split in SPLITS for task in self.tasks.get(split, ())]


def load_tasks(environment: Environment) -> LoadedTasks:
    """Load every split, as in a run, then load again."""
    started_at = time.perf_counter()
    tasks, problems = dict[Split, Sequence[Task]](), dict[Split, str]()
    for split in SPLITS:
        try:
            tasks[split] = read_tasks(environment, split)
        except (ValueError, SystemExit) as error:
            problems[split] = describe_error(error) if isinstance(error, SystemExit) else str(error)
    seconds = time.perf_counter() - started_at
    changed = [
        split for split, split_tasks in tasks.items() if serialize_tasks(split_tasks) != _reload(environment, split)
    ]
    return LoadedTasks(tasks, problems, changed, seconds)


def _reload(environment: Environment, split: Split) -> list[str] | None:
    """Load a split again; return None if loading fails."""
    try:
        return serialize_tasks(read_tasks(environment, split))
    except (ValueError, SystemExit):
        return None


def serialize_tasks(tasks: Iterable[Task]) -> list[str]:
    """Serialize tasks. Equal tasks have equal text in any process."""
    return [json.dumps([task.id, task.prompt, to_json_types(task.data)], default=_type_name) for task in tasks]


def to_json_types(value: object, depth: int = 0) -> object:
    """Convert data to JSON's types: tuples become lists, keys become strings.

    Anything nested deeper than ``MAX_DEPTH`` becomes "…".
    """
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): to_json_types(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_types(inner, depth + 1) for inner in value]
    return value


def _type_name(value: object) -> str:
    return type(value).__name__
