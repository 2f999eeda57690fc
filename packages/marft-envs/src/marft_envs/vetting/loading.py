"""The tasks of an environment, loaded twice."""

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
        except (ValueError, SystemExit) as error:
            problems[split] = described(error) if isinstance(error, SystemExit) else str(error)
    seconds = time.perf_counter() - began
    changed = [split for split, given in tasks.items() if written(given) != _again(environment, split)]
    return Loaded(tasks, problems, changed, seconds)


def _again(environment: EnvironmentPart, split: Split) -> list[str] | None:
    """The tasks when they are asked for again; None where there are none any more."""
    try:
        return written(tasks_of(environment, split))
    except (ValueError, SystemExit):
        return None


def written(tasks: Iterable[Task]) -> list[str]:
    """Tasks as texts that are equal for equal tasks, in any process."""
    return [json.dumps([task.id, task.prompt, plain(task.data)], default=_kind) for task in tasks]


def plain(value: Any, depth: int = 0) -> Any:
    """Data as JSON has it: a tuple is a list, a key a text; nothing below ``DEEPEST`` tables and lists."""
    if depth > DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, depth + 1) for inner in value]
    return value


def _kind(value: object) -> str:
    return type(value).__name__
