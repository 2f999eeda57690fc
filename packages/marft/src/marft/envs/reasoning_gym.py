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
from marft.config.plugin_types import EnvironmentPart
from marft.config.settings import PlainTable
from marft.envs.generators import Generator, Levels, MixtureDataset, available_datasets, build_generators, check_dataset
from marft.envs.oracle_policy import OraclePolicy
from marft.envs.scripted_policy import ScriptedPolicy
from marft.envs.single_turn import Grade, SingleTurn
from marft.envs.splits import assign_split

MAX_TASKS = 10_000_000
MAX_IDLE_DRAWS = 1000  # draws without a new question of the wanted split before the data set counts as exhausted


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
    params: PlainTable = {}  # parameters of the data set, for all levels
    # number of levels from its own curriculum, or parameters for each level, easiest first; 0: one level
    levels: Levels = 0
    mixture: Annotated[tuple[MixtureDataset, ...], Strict(False)] = ()  # several data sets in place of one
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # seed of the questions
    train_tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = 5000  # number of training questions, over all data sets
    held_out_tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = 1000  # number of questions in validation, and in test
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
        duplicate = next((name for name in names if names.count(name) > 1), "")
        if duplicate:
            raise PydanticCustomError(
                "mixture", "holds {name} twice; give one of them a name of its own (cohort)", {"name": repr(duplicate)}
            )
        if self.dataset:
            check_dataset(self.dataset, self.params, self.levels)
        return self

    @cached_property
    def _generators(self) -> dict[str, Generator]:
        single = MixtureDataset.model_construct(dataset=self.dataset, params=self.params, levels=self.levels)
        generator_list = [item for member in self.mixture or (single,) for item in build_generators(member, self.seed)]
        return {generator.key: generator for generator in generator_list}

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        counts: dict[Split, int] = {
            "train": self.train_tasks,
            "validation": self.held_out_tasks,
            "test": self.held_out_tasks,
        }
        ordered_tasks: dict[Split, list[tuple[float, Task]]] = {split: [] for split in counts}
        seen: set[str] = set()
        total = sum(generator.weight for generator in self._generators.values())
        for generator in self._generators.values():
            share = generator.weight / total
            sampled = self._sample_tasks(
                generator, {split: max(1, round(n * share)) for split, n in counts.items()}, seen
            )
            for split, tasks in sampled.items():
                ordered_tasks[split] += [((place + 0.5) / len(tasks), task) for place, task in enumerate(tasks)]
        # every prefix of a split then has the proportions of the mixture
        return {split: [task for _, task in sorted(tasks, key=itemgetter(0))] for split, tasks in ordered_tasks.items()}

    def _sample_tasks(
        self, generator: Generator, counts: Mapping[Split, int], seen: set[str]
    ) -> dict[Split, list[Task]]:
        """Return new questions from one data set, distinct from earlier ones.

        Args:
            counts: number of questions for each split.
            seen: earlier questions; new ones are added.
        """
        tasks: dict[Split, list[Task]] = {split: [] for split in counts}
        index = idle = 0
        while any(len(tasks[split]) < count for split, count in counts.items()) and idle < MAX_IDLE_DRAWS:
            entry = generator.dataset[index]
            question = entry["question"]
            split = assign_split(question)
            idle += 1
            if question not in seen and len(tasks[split]) < counts[split]:
                seen.add(question)
                tasks[split].append(
                    Task(f"{generator.key}/{index}", question, {"entry": entry, **self._task_metadata(generator)})
                )
                idle = 0
            index += 1
        return tasks

    def _task_metadata(self, generator: Generator) -> dict[str, str | int]:
        """Return a question's labels: its data set in a mixture, and its level if any data set has several."""
        metadata: dict[str, str | int] = {"dataset": generator.name} if self.mixture else {}
        if any(other.level for other in self._generators.values()):
            metadata["level"] = generator.level or 1
        return metadata

    def sampling_weight(self, task: Task) -> float:
        """Return a task's sampling weight.

        The weights make data sets come as often as configured, however many questions each has.
        """
        if len(self._generators) == 1:
            return 1.0
        generator = self._generator_of(task)
        return generator.weight / self._task_counts[generator.key]

    @cached_property
    def _task_counts(self) -> dict[str, int]:
        """Number of training tasks by data set and level."""
        counts: dict[str, int] = {}
        for task in self._splits["train"]:
            key = task.id.rpartition("/")[0]
            counts[key] = counts.get(key, 0) + 1
        return counts

    def _generator_of(self, task: Task) -> Generator:
        return self._generators[task.id.rpartition("/")[0]]

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Return every data set's name."""
        return {"dataset": sorted(available_datasets())}

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks in a split, drawn once; fewer than requested if a data set has no more questions."""
        return self._splits[split]

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  no randomness
        """Return a new session."""
        return SingleTurn(task, lambda text: self._grade(task, text))

    def script(self, skill: float = 1.0) -> ScriptedPolicy:
        """Return a scripted policy for which every agent knows the package's answer."""
        return OraclePolicy(lambda task: str(task.data["entry"]["answer"]), skill)

    def _grade(self, task: Task, text: str) -> Grade:
        score = self._generator_of(task).score(find_answer(text), task.data["entry"])
        success = score >= 1.0 - 1e-9
        return Grade(score if self.partial_credit else float(success), success)
