"""Environments with generated tasks; the content of a task decides its split."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from marft.common.seeds import derive_seed
from marft.common.types import Task
from marft.config.interfaces.environment import Environment, Split
from marft.config.settings import did_you_mean
from marft.envs.splits import DataSplit, assign_data_split, fill_splits, normalize_question

MAX_TASKS = 1_000_000


class GeneratedTask(NamedTuple):
    """A generated task.

    Args:
        content: canonical content that identifies the task. It stays the same when only names, colors or the viewpoint
            change. Tasks with equal content never appear in two splits.
        prompt: first prompt to the team.
        data: data for grading; plain values.
    """

    content: str
    prompt: str
    data: Mapping[str, Any]


class GeneratedEnvironment(Environment):
    """Base class for environments with tasks generated from seeds.

    The content of a task decides its part: one tenth is for validation, one tenth for test, one fifth for
    demonstrations, and the rest for training. No content appears twice.
    """

    # name of the tasks' random stream; "" is the class name, so a renamed class generates other tasks
    stream: ClassVar[str] = ""
    max_idle_draws: ClassVar[int] = 20_000  # consecutive draws without a new task after which generation stops

    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="seed for task generation")
    train_tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = Field(default=2000, description="number of training tasks")
    held_out_tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = Field(
        default=500, description="number of validation tasks, and of test tasks"
    )

    @abstractmethod
    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a task for any split."""

    def external_test_tasks(self) -> Sequence[Task]:
        """Return the tasks of the test split from another source; an empty result requests generated test tasks.

        No generated task repeats the name of one of these tasks. None repeats a prompt either, up to case and
        spacing.
        """
        return ()

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split, generated once; fewer than requested if the environment has no more."""
        return self._splits[split]

    def demonstrations(self) -> Iterator[Task]:
        """Yield tasks outside all splits, in an independent order, to demonstrate the environment to a model."""
        for part, task in self._stream_tasks("demonstrations"):
            if part == "demonstrations":
                yield task

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        wanted: dict[Split, int] = {
            "train": self.train_tasks,
            "validation": self.held_out_tasks,
            "test": self.held_out_tasks,
        }
        if test_tasks := self.external_test_tasks():
            wanted["test"] = 0
        tasks = fill_splits(self._stream_tasks("tasks"), wanted)
        tasks["test"] += test_tasks
        return tasks

    def _stream_tasks(self, purpose: str) -> Iterator[tuple[DataSplit, Task]]:
        """Yield new tasks with their parts until ``max_idle_draws`` consecutive draws give none."""
        test_tasks, seen = self.external_test_tasks(), set[str]()
        reserved = {task.id for task in test_tasks} | {normalize_question(task.prompt) for task in test_tasks}
        index = idle = 0
        while idle < self.max_idle_draws:
            generated = self.generate_task(
                Random(derive_seed(self.seed, self.stream or type(self).__name__, purpose, index))
            )
            idle += 1
            if generated.content not in seen:
                seen.add(generated.content)
                name = f"{self.name}/{index}"
                if name not in reserved and normalize_question(generated.prompt) not in reserved:
                    yield assign_data_split(generated.content), Task(name, generated.prompt, generated.data)
                    idle = 0
            index += 1


def describe_unknown_roles(roles_by_key: Mapping[str, Sequence[str]], roles: Sequence[str]) -> Iterator[str]:
    """Yield an error for each unknown role in an environment's settings, given the role names by key."""
    for key, names in roles_by_key.items():
        for name in names:
            if name not in roles:
                yield f"environment.{key}: no agent is called {name!r}{did_you_mean(name, roles)}"
