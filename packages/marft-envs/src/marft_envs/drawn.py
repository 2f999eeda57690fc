"""Worlds whose tasks are drawn: what makes a task the one that it is decides which split it belongs to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from marft.agents.environment import Split
from marft.common.seeds import derive_seed
from marft.common.types import Task
from marft.config.parts import EnvironmentPart
from marft.envs.splits import Part, bare, part_of

MOST_TASKS = 1_000_000


class Drawing(NamedTuple):
    """A drawn task.

    Args:
        content: what makes it the task that it is, in words that stay the same where only names, colours or the side
            from which it is seen change: tasks of equal content never stand in two splits.
        prompt: what the team is shown first.
        data: what grades it; plain values.
    """

    content: str
    prompt: str
    data: Mapping[str, Any]


class Drawn(EnvironmentPart):
    """Base of worlds whose tasks are drawn from seeds. Each task's content says which part it belongs to: a tenth is
    for validation, a tenth for the test, a fifth for demonstrations, the rest for training. No content comes twice."""

    stream: ClassVar[str] = ""  # names the random stream of its tasks; "": the class's name, so a new name draws others
    most_idle: ClassVar[int] = 20_000  # draws without a new task before the world counts as exhausted

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of the tasks
    train_tasks: Annotated[int, Field(ge=1, le=MOST_TASKS)] = 2000  # tasks to train on
    held_out_tasks: Annotated[int, Field(ge=1, le=MOST_TASKS)] = 500  # in validation and test each

    @abstractmethod
    def draw(self, random: Random) -> Drawing:
        """A task of any part."""

    def tested_on(self) -> Sequence[Task]:
        """Return the tasks of the test split, if they come from another source; empty: they are drawn too.

        No drawn task repeats the name of one of them, or the prompt, up to case and spacing.
        """
        return ()

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of a split, drawn once; fewer than asked for where the world has no more."""
        return self._splits[split]

    def demonstrations(self) -> Iterator[Task]:
        """Tasks that are in no split, in an order of their own: to show a model how the world is played."""
        for part, task in self._stream("demonstrations"):
            if part == "demonstrations":
                yield task

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        wanted: dict[Split, int] = {
            "train": self.train_tasks, "validation": self.held_out_tasks, "test": self.held_out_tasks
        }  # fmt: skip
        if tested_on := self.tested_on():
            wanted["test"] = 0
        found: dict[Split, list[Task]] = {split: [] for split in wanted}
        for part, task in self._stream("tasks"):
            if part != "demonstrations" and len(found[part]) < wanted[part]:
                found[part].append(task)
            if all(len(found[split]) == count for split, count in wanted.items()):
                break
        found["test"] += tested_on
        return found

    def _stream(self, which: str) -> Iterator[tuple[Part, Task]]:
        """New tasks for as long as there are any, each with its part."""
        tested_on, seen = self.tested_on(), set[str]()
        taken = {task.id for task in tested_on} | {bare(task.prompt) for task in tested_on}
        index = idle = 0
        while idle < self.most_idle:
            drawing = self.draw(Random(derive_seed(self.seed, self.stream or type(self).__name__, which, index)))
            idle += 1
            if drawing.content not in seen:
                seen.add(drawing.content)
                name = f"{self.name}/{index}"
                if name not in taken and bare(drawing.prompt) not in taken:
                    yield part_of(drawing.content), Task(name, drawing.prompt, drawing.data)
                    idle = 0
            index += 1
