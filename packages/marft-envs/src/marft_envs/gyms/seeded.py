"""Tasks that are seeds for a third-party generator, with disjoint seed ranges or disjoint first observations."""

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

FIRST: Mapping[Split, int] = {"train": 0, "validation": 10**9, "test": 15 * 10**8}  # first seed of each split
PATIENCE = 2000  # consecutive seeds without a new first observation after which the search stops


class Seeded(EnvironmentPart):
    """Base class for third-party environments."""

    game: Filled  # name of the game
    kwargs: Plain = {}  # keyword arguments for creating the game
    # additional keyword arguments, used in rotation; each set is one kind of task
    variants: Annotated[tuple[Plain, ...], Strict(False)] = ()
    # rule for splits; seeds: each split has its own seeds; content: the first observation decides the split, and none
    # appears twice
    split_by: Literal["seeds", "content"] = "seeds"
    seed: Annotated[int, Field(ge=0, lt=10**8)] = 0  # offset of the first seed
    train_tasks: Annotated[int, Field(ge=1, le=10**6)] = 1000  # number of training seeds
    held_out_tasks: Annotated[int, Field(ge=1, le=10**6)] = 200  # number of validation seeds, and of test seeds
    action_names: Names = ()  # names of the actions, in the game's order; empty: their numbers
    observation_names: Names = ()  # names of the observation's numbers or parts, in order
    digits: Annotated[int, Field(ge=1, le=15)] = 3  # significant digits of numbers in observations
    tells_actions: bool = True  # list the legal actions in the observation as well as offering them as options
    max_steps: Few = 100  # maximum steps in an episode; the episode is truncated after them
    scale: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0  # factor for rewards
    # minimum return for success, before `scale`; default: the game's own `is_success` or `success`
    solved_from: Bounded | None = None

    @abstractmethod
    def first_shown(self, seed: int, kwargs: Mapping[str, Any]) -> str:
        """Return the full text of a game's first observation."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return a split's seeds, as tasks.

        With ``split_by = "content"`` there are fewer than requested if the game has no more distinct first
        observations.
        """
        if self.split_by == "content":
            return self._by_content[split]
        _ = self._begins
        number = self.train_tasks if split == "train" else self.held_out_tasks
        return [self._task(FIRST[split] + self.seed + index, index) for index in range(number)]

    @cached_property
    def _begins(self) -> str:
        """Return the first task's first observation; an unplayable game then fails before training.

        Raises:
            ValueError: the game cannot be played.
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
        """Yield tasks with new first observations until ``PATIENCE`` consecutive seeds give none."""
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
        """Return True if a finished episode solved its task; None if the game does not report it.

        Args:
            earned: return of the episode, before ``scale``.
            info: the game's last info.
        """
        if self.solved_from is not None:
            return earned >= self.solved_from
        said = info.get("is_success", info.get("success"))
        return None if said is None else bool(said)
