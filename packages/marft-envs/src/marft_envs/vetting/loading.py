"""Loading of an environment's tasks, twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marft.agents.environment import Split
from marft.common.faults import described
from marft.common.types import Task
from marft.config.parts import EnvironmentPart
from marft.config.settings import DEEPEST
from marft.envs.tasks import tasks_of

SPLITS: Sequence[Split] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
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
    def everything(self) -> list[Task]:
        """Return the tasks from every split."""
        return [task for split in SPLITS for task in self.tasks.get(split, ())]


def load(environment: EnvironmentPart) -> Loaded:
    """Load every split, as in a run, then load again."""
    began = time.perf_counter()
    tasks, problems = dict[Split, Sequence[Task]](), dict[Split, str]()
    for split in SPLITS:
        try:
            tasks[split] = tasks_of(environment, split)
        except (ValueError, SystemExit) as error:
            problems[split] = described(error) if isinstance(error, SystemExit) else str(error)
    seconds = time.perf_counter() - began
    changed = [split for split, given in tasks.items() if written(given) != _again(environment, split)]
    return Loaded(tasks, problems, changed, seconds)


def _again(environment: EnvironmentPart, split: Split) -> list[str] | None:
    """Load a split again; return None if loading fails."""
    try:
        return written(tasks_of(environment, split))
    except (ValueError, SystemExit):
        return None


def written(tasks: Iterable[Task]) -> list[str]:
    """Serialize tasks. Equal tasks have equal text in any process."""
    return [json.dumps([task.id, task.prompt, plain(task.data)], default=_kind) for task in tasks]


def plain(value: Any, depth: int = 0) -> Any:
    """Convert data to JSON's types: tuples become lists, keys become strings.

    Anything nested deeper than ``DEEPEST`` becomes "…".
    """
    if depth > DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, depth + 1) for inner in value]
    return value


def _kind(value: object) -> str:
    return type(value).__name__
