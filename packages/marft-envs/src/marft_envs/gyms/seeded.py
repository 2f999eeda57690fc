"""Tasks that are seeds of somebody else's generator: ranges that share none, or texts that share none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from marft.agents.environment import Split
from marft.common.types import Task
from marft.config.parts import EnvironmentPart
from marft.config.settings import Bounded, Few, Filled, Names, Plain
from marft.envs.splits import split_of

FIRST: Mapping[Split, int] = {"train": 0, "validation": 10**9, "test": 15 * 10**8}  # seed of a split
PATIENCE = 2000  # seeds without a new beginning before a game counts as one that has no more


class Seeded(EnvironmentPart):
    """Base of environments that are another package's."""

    game: Filled  # which
    kwargs: Plain = {}  # that it is made with
    variants: Annotated[tuple[Plain, ...], Strict(False)] = ()  # more of them, in turn: each is a kind of task
    # seeds: each split has its own; content: what is shown first decides the split of a seed, and none comes twice
    split_by: Literal["seeds", "content"] = "seeds"
    seed: Annotated[int, Field(ge=0, lt=10**8)] = 0  # the first
    train_tasks: Annotated[int, Field(ge=1, le=10**6)] = 1000  # seeds to train on
    held_out_tasks: Annotated[int, Field(ge=1, le=10**6)] = 200  # in validation and test each
    action_names: Names = ()  # of its actions, in their order; else they go by their numbers
    observation_names: Names = ()  # of the numbers or parts of what it shows, in their order
    digits: Annotated[int, Field(ge=1, le=15)] = 3  # that numbers are rounded to
    tells_actions: bool = True  # whether what is possible stands in what is shown, beside being offered
    max_steps: Few = 100  # of an episode; then it is cut off
    scale: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0  # of rewards
    # what an episode must earn, before `scale`, to be solved; else the game's own `is_success`, or `success`
    solved_from: Bounded | None = None

    @abstractmethod
    def first_shown(self, seed: int, kwargs: Mapping[str, Any]) -> str:
        """All that a game shows first."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """Seeds of a split; fewer than asked for where a game that is split by content has no more beginnings."""
        if self.split_by == "content":
            return self._by_content[split]
        _ = self._begins
        number = self.train_tasks if split == "train" else self.held_out_tasks
        return [self._task(FIRST[split] + self.seed + index, index) for index in range(number)]

    @cached_property
    def _begins(self) -> str:
        """What the first task shows, so that a game that cannot be played is refused before it is.

        Raises:
            ValueError: it cannot be.
        """
        first = self._task(FIRST["train"] + self.seed, 0)
        return self.first_shown(first.data["seed"], first.data["kwargs"])

    @cached_property
    def _by_content(self) -> dict[Split, list[Task]]:
        wanted: dict[Split, int] = {
            "train": self.train_tasks, "validation": self.held_out_tasks, "test": self.held_out_tasks
        }  # fmt: skip
        found: dict[Split, list[Task]] = {split: [] for split in wanted}
        for text, task in self._beginnings():
            split = split_of(text)
            if len(found[split]) < wanted[split]:
                found[split].append(task)
            if all(len(found[name]) == number for name, number in wanted.items()):
                break
        return found

    def _beginnings(self) -> Iterator[tuple[str, Task]]:
        """Seeds whose beginnings are new, for as long as there are any."""
        seen, idle = set[str](), 0
        for index in count():
            task = self._task(self.seed + index, index)
            text = self.first_shown(task.data["seed"], task.data["kwargs"])
            idle += 1
            if text not in seen:
                seen.add(text)
                yield text, task
                idle = 0
            if idle == PATIENCE:
                return

    def _task(self, seed: int, index: int) -> Task:
        more = self.variants[index % len(self.variants)] if self.variants else {}
        return Task(
            f"{self.game}/{seed}", f"{self.game}, seed {seed}", {"seed": seed, "kwargs": {**self.kwargs, **more}}
        )

    def succeeded(self, earned: float, info: Mapping[str, Any]) -> bool | None:
        """Whether an episode that is over has solved its task; None where nobody says.

        Args:
            earned: in all, before ``scale``.
        """
        if self.solved_from is not None:
            return earned >= self.solved_from
        said = info.get("is_success", info.get("success"))
        return None if said is None else bool(said)
