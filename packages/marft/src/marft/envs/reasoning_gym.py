"""Reasoning Gym environment: data sets by name, one or a mixture, with splits that share no question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Annotated, ClassVar

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import find_answer
from marft.agents.environment import Split
from marft.common.types import Task
from marft.config.parts import EnvironmentPart
from marft.config.settings import Plain
from marft.envs.answering import Answering
from marft.envs.generators import Generator, Levels, Member, check, datasets_known, generators
from marft.envs.scripts import Script
from marft.envs.single_turn import Grade, SingleTurn
from marft.envs.splits import split_of

MOST_TASKS = 10_000_000
PATIENCE = 1000  # draws without a new question of the wanted split before the data set counts as exhausted


class ReasoningGym(EnvironmentPart):
    r"""Questions from Reasoning Gym data sets, drawn until the splits have enough distinct questions.

    The environment uses one data set, or a ``mixture`` of several with weights. Each has its own parameters, or
    several ``levels`` of difficulty, which tasks report as ``level`` for a curriculum. The answer is the last
    ``\boxed{}`` or ``<answer>`` tag of the answering agent.

    The package draws item i of seed s with seed s + i, so adjacent seeds repeat each other's items, and small data
    sets repeat themselves. Questions are therefore assigned to splits by their own text and never repeat.
    """

    one_step: ClassVar[bool] = True

    dataset: str = ""  # name in Reasoning Gym; "": use mixture
    params: Plain = {}  # parameters of the data set, for all levels
    # number of levels from its own curriculum, or parameters for each level, easiest first; 0: one level
    levels: Levels = 0
    mixture: Annotated[tuple[Member, ...], Strict(False)] = ()  # several data sets in place of one
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # seed of the questions
    train_tasks: Annotated[int, Field(ge=1, le=MOST_TASKS)] = 5000  # number of training questions, over all data sets
    held_out_tasks: Annotated[int, Field(ge=1, le=MOST_TASKS)] = 1000  # number of questions in validation, and in test
    # reward the package's score; by default, the reward is 1 for a full score and 0 for any other
    partial_credit: bool = False

    @model_validator(mode="after")
    def _check_dataset(self) -> ReasoningGym:
        if bool(self.dataset) == bool(self.mixture):
            raise PydanticCustomError("dataset", "needs a data set (dataset), or several (mixture), and not both")
        if self.mixture and (self.params or self.levels):
            raise PydanticCustomError(
                "mixture", "params and levels stand in the tables of mixture, beside each data set"
            )
        names = [member.name for member in self.mixture]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise PydanticCustomError(
                "mixture", "holds {name} twice; give one of them a name of its own (cohort)", {"name": repr(twice)}
            )
        if self.dataset:
            check(self.dataset, self.params, self.levels)
        return self

    @cached_property
    def _generators(self) -> dict[str, Generator]:
        alone = Member.model_construct(dataset=self.dataset, params=self.params, levels=self.levels)
        made = [each for member in self.mixture or (alone,) for each in generators(member, self.seed)]
        return {generator.key: generator for generator in made}

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        wanted: dict[Split, int] = {
            "train": self.train_tasks, "validation": self.held_out_tasks, "test": self.held_out_tasks
        }  # fmt: skip
        found: dict[Split, list[tuple[float, Task]]] = {split: [] for split in wanted}
        seen: set[str] = set()
        total = sum(generator.weight for generator in self._generators.values())
        for generator in self._generators.values():
            share = generator.weight / total
            drawn = self._drawn(generator, {split: max(1, round(n * share)) for split, n in wanted.items()}, seen)
            for split, tasks in drawn.items():
                found[split] += [((place + 0.5) / len(tasks), task) for place, task in enumerate(tasks)]
        # every prefix of a split then has the proportions of the mixture
        return {split: [task for _, task in sorted(tasks, key=itemgetter(0))] for split, tasks in found.items()}

    def _drawn(self, generator: Generator, wanted: Mapping[Split, int], seen: set[str]) -> dict[Split, list[Task]]:
        """Return new questions from one data set, distinct from earlier ones.

        Args:
            wanted: number of questions for each split.
            seen: earlier questions; new ones are added.
        """
        found: dict[Split, list[Task]] = {split: [] for split in wanted}
        index = idle = 0
        while any(len(found[split]) < count for split, count in wanted.items()) and idle < PATIENCE:
            entry = generator.made[index]
            question = entry["question"]
            split = split_of(question)
            idle += 1
            if question not in seen and len(found[split]) < wanted[split]:
                seen.add(question)
                found[split].append(
                    Task(f"{generator.key}/{index}", question, {"entry": entry, **self._about(generator)})
                )
                idle = 0
            index += 1
        return found

    def _about(self, generator: Generator) -> dict[str, str | int]:
        """Return a question's labels: its data set in a mixture, and its level if any data set has several."""
        about: dict[str, str | int] = {"dataset": generator.name} if self.mixture else {}
        if any(each.level for each in self._generators.values()):
            about["level"] = generator.level or 1
        return about

    def odds(self, task: Task) -> float:
        """Return a task's sampling weight.

        The weights make data sets come as often as configured, however many questions each has.
        """
        if len(self._generators) == 1:
            return 1.0
        generator = self._of(task)
        return generator.weight / self._counts[generator.key]

    @cached_property
    def _counts(self) -> dict[str, int]:
        """Number of training tasks by data set and level."""
        counts: dict[str, int] = {}
        for task in self._splits["train"]:
            key = task.id.rpartition("/")[0]
            counts[key] = counts.get(key, 0) + 1
        return counts

    def _of(self, task: Task) -> Generator:
        return self._generators[task.id.rpartition("/")[0]]

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Return every data set's name."""
        return {"dataset": sorted(datasets_known())}

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks in a split, drawn once; fewer than requested if a data set has no more questions."""
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  no randomness
        """Return a new session."""
        return SingleTurn(task, lambda text: self._grade(task, text))

    def script(self, skill: float = 1.0) -> Script:
        """Return a scripted policy for which every agent knows the package's answer."""
        return Answering(lambda task: str(task.data["entry"]["answer"]), skill)

    def _grade(self, task: Task, text: str) -> Grade:
        score = self._of(task).score(find_answer(text), task.data["entry"])
        success = score >= 1.0 - 1e-9
        return Grade(score if self.partial_credit else float(success), success)
