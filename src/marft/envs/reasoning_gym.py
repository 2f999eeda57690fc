"""Any data set of Reasoning Gym by name, with splits that share no question."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.config.parts import EnvironmentPart
from marft.config.settings import Plain, did_you_mean
from marft.envs.single_turn import Grade, SingleTurn
from marft.envs.splits import split_of
from marft.game.answers import find_answer
from marft.game.environment import Split
from marft.types import Task

MOST_TASKS = 10_000_000
NUMBERS = (int, float, "int", "float")  # hints of the package's parameters
PATIENCE = 1000  # draws without a new question of the wanted split before the data set counts as exhausted


class ReasoningGym(EnvironmentPart):
    r"""Questions of one data set of Reasoning Gym, which draws them anew for as long as it has any.

    The answer is the last ``\boxed{}``, else ``<answer>`` tag, of the answering agent.

    The package draws item i of seed s with seed s + i, so neighbouring seeds repeat each other's items, and small
    data sets repeat themselves. Questions are therefore assigned to splits by their own text and never repeat.
    """

    one_step: ClassVar[bool] = True

    dataset: str  # its name in Reasoning Gym
    params: Plain = {}  # of the data set
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of the questions
    train_tasks: Annotated[int, Field(ge=1, le=MOST_TASKS)] = 5000  # questions to train on
    held_out_tasks: Annotated[int, Field(ge=1, le=MOST_TASKS)] = 1000  # in validation and test each
    partial_credit: bool = False  # else the reward is 1 for a full score and 0 for any other

    @model_validator(mode="after")
    def _check_dataset(self) -> ReasoningGym:
        datasets = _datasets()
        if self.dataset not in datasets:
            raise PydanticCustomError(
                "dataset",
                "reasoning_gym has no data set {name}{hint}",
                {"name": repr(self.dataset), "hint": did_you_mean(self.dataset, datasets)},
            )
        fields = {f.name: f for f in dataclasses.fields(datasets[self.dataset][1]) if f.name not in ("seed", "size")}
        for key, value in self.params.items():
            if key not in fields:
                raise PydanticCustomError(
                    "params",
                    "data set {name} has no parameter {key}{hint}",
                    {"name": repr(self.dataset), "key": repr(key), "hint": did_you_mean(key, fields)},
                )
            if isinstance(value, bool) and fields[key].type in NUMBERS:
                raise PydanticCustomError(
                    "params", "{key} is a number, not {value}", {"key": repr(key), "value": str(value).lower()}
                )
        try:
            _ = self._generator
        except Exception as error:  # the package checks its own parameters, each data set in its own way
            raise PydanticCustomError(
                "params", "data set {name}: {error}", {"name": repr(self.dataset), "error": str(error)}
            ) from error
        return self

    @cached_property
    def _generator(self) -> Any:
        cls, config = _datasets()[self.dataset]
        return cls(config(**{**self.params, "seed": self.seed, "size": 2**31}))

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        wanted: dict[Split, int] = {
            "train": self.train_tasks, "validation": self.held_out_tasks, "test": self.held_out_tasks
        }  # fmt: skip
        found: dict[Split, list[Task]] = {split: [] for split in wanted}
        seen: set[str] = set()
        index = idle = 0
        while any(len(found[split]) < count for split, count in wanted.items()) and idle < PATIENCE:
            entry = self._generator[index]
            split = split_of(entry["question"])
            idle += 1
            if entry["question"] not in seen and len(found[split]) < wanted[split]:
                seen.add(entry["question"])
                found[split].append(Task(f"{self.dataset}/{index}", entry["question"], {"entry": entry}))
                idle = 0
            index += 1
        return found

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """The names of all data sets."""
        return {"dataset": sorted(_datasets())}

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of a split, drawn once; fewer than asked for where the data set has no more questions."""
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  nothing here is random
        return SingleTurn(task, lambda text: self._grade(task, text))

    def _grade(self, task: Task, text: str) -> Grade:
        score = float(self._generator.score_answer(find_answer(text), task.data["entry"]))
        success = score >= 1.0 - 1e-9
        return Grade(score if self.partial_credit else float(success), success)


def _datasets() -> dict[str, tuple[Any, Any]]:
    import reasoning_gym  # noqa: F401  registers the data sets
    from reasoning_gym.factory import DATASETS

    return dict(DATASETS)
