"""The tasks of an environment, loaded twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from marft.config.parts import EnvironmentPart
from marft.envs.tasks import tasks_of
from marft.game.environment import Environment, Split
from marft.types import Task

SPLITS: Sequence[Split] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """What ``tasks`` gives.

    Args:
        tasks: by split, as far as they can be used.
        problems: by split, why they cannot.
        changed: splits that hold other tasks when they are asked for again.
        seconds: for all splits, the first time.
    """

    tasks: Mapping[Split, Sequence[Task]]
    problems: Mapping[Split, str] = field(default_factory=dict)
    changed: Sequence[Split] = ()
    seconds: float = 0.0

    @property
    def everything(self) -> list[Task]:
        """The tasks of all splits."""
        return [task for split in SPLITS for task in self.tasks.get(split, ())]


def load(environment: EnvironmentPart) -> Loaded:
    """Load every split, as a run would, and ask again."""
    began = time.perf_counter()
    tasks, problems = dict[Split, Sequence[Task]](), dict[Split, str]()
    for split in SPLITS:
        try:
            tasks[split] = tasks_of(environment, split)
        except ValueError as error:
            problems[split] = str(error)
    seconds = time.perf_counter() - began
    again = cast("Environment", environment)
    changed = [split for split, given in tasks.items() if written(given) != written(again.tasks(split))]
    return Loaded(tasks, problems, changed, seconds)


def written(tasks: Iterable[Task]) -> list[str]:
    """Tasks as texts that are equal for equal tasks, in any process."""
    return [json.dumps([task.id, task.prompt, plain(task.data)], default=_kind) for task in tasks]


def plain(value: Any) -> Any:
    """Data with what JSON changes or refuses marked: a tuple is a list, a key a text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def _kind(value: object) -> str:
    return type(value).__name__
