"""Reasoning Gym environment: data sets by name, one or a mixture, with splits that share no question."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import find_answer
from marft.common.types import Task
from marft.config.interfaces.environment import Environment, Split
from marft.config.settings import NonEmptyString, PlainTable, Positive, Settings, did_you_mean
from marft.envs.graded_sessions import Grade, SingleTurn
from marft.envs.safe_eval import patch_scorers
from marft.envs.scripted_policy import OraclePolicy, ScriptedPolicy
from marft.envs.splits import assign_split

if TYPE_CHECKING:
    from reasoning_gym.coaching.base_curriculum import BaseCurriculum
    from reasoning_gym.dataset import ProceduralDataset

NUMERIC_TYPES = (int, float, "int", "float")  # type hints of numeric parameters
MAX_LEVELS = 100
# number of levels from the data set's own curriculum, the easiest first; or parameters for each level; 0: one level
Levels = Annotated[int, Field(ge=0, le=MAX_LEVELS)] | Annotated[tuple[PlainTable, ...], Strict(False)]
MAX_TASKS = 10_000_000
MAX_IDLE_DRAWS = 1000  # draws without a new question of the wanted split before the data set counts as exhausted


class Generator(NamedTuple):
    """Data set at one level; ``dataset`` is the package's data set, ``weight`` its share of all questions."""

    name: str
    level: int  # from 1; 0 without levels
    weight: float
    dataset: ProceduralDataset

    @property
    def key(self) -> str:
        """Prefix of its task ids."""
        return f"{self.name}.{self.level}" if self.level else self.name

    def score(self, answer: str | None, entry: Mapping[str, object]) -> float:
        """Return the package's score for an answer, from 0 to 1; 0 if its scorer cannot read the answer.

        Raises:
            Exception: any error of the scorer, if it cannot read the correct answer either.
        """
        try:
            return float(self.dataset.score_answer(answer, entry))
        except Exception:  # noqa: BLE001  many scorers raise for an answer that is not a number or table
            self.dataset.score_answer(entry["answer"], entry)
            return 0.0


class MixtureDataset(Settings):
    """Data set in a mixture."""

    dataset: NonEmptyString = Field(description="name in Reasoning Gym")
    weight: Positive = Field(default=1.0, description="sampling weight relative to the other data sets")
    params: PlainTable = Field(default={}, description="parameters of the data set, for all levels")
    levels: Levels = Field(
        default=0,
        description=(
            "number of levels from the data set's curriculum, or parameters for each level, easiest first; 0: one level"
        ),
    )
    cohort: str = Field(default="", description='label of the questions; "": name of the data set')

    @property
    def name(self) -> str:
        """Label of its questions."""
        return self.cohort or self.dataset

    @model_validator(mode="after")
    def _check(self) -> MixtureDataset:
        check_dataset(self.dataset, self.params, self.levels)
        return self


def check_dataset(dataset: str, params: Mapping[str, object], levels: int | Sequence[Mapping[str, object]]) -> None:
    """Check a data set's support for these parameters and levels.

    Raises:
        PydanticCustomError: it does not; the message names the key and the problem.
    """
    datasets = available_datasets()
    if dataset not in datasets:
        raise PydanticCustomError(
            "dataset",
            "reasoning_gym has no data set {name}{hint}",
            {"name": repr(dataset), "hint": did_you_mean(dataset, datasets)},
        )
    for table in (params, *(() if isinstance(levels, int) else levels)):
        _check_params(dataset, table)
    try:
        list(build_generators(MixtureDataset.model_construct(dataset=dataset, params=params, levels=levels), seed=0))
    except PydanticCustomError:
        raise
    except Exception as error:  # each data set checks its own parameters with its own errors
        raise PydanticCustomError(
            "params", "data set {name}: {error}", {"name": repr(dataset), "error": str(error)}
        ) from error


def build_generators(member: MixtureDataset, seed: int) -> Iterator[Generator]:
    """Yield one leveled data set for each level.

    Raises:
        PydanticCustomError: the data set has no curriculum, or one with fewer levels.
        Exception: any error of the package for invalid parameters.
    """
    cls, config = available_datasets()[member.dataset]
    level_params = (
        _curriculum_levels(member.dataset, member.levels) if isinstance(member.levels, int) else member.levels
    )
    weight = member.weight / max(len(level_params), 1)
    for level, table in enumerate(level_params or [{}], 1 if level_params else 0):
        params = {**table, **member.params} if isinstance(member.levels, int) else {**member.params, **table}
        yield Generator(member.name, level, weight, cls(config(**{**params, "seed": seed, "size": 2**31})))


def _curriculum_levels(dataset: str, count: int) -> list[dict[str, object]]:
    """Return the parameters for the easiest levels in a data set's own curriculum.

    Each level sets all attributes of the curriculum together.
    """
    if not count:
        return []
    from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode
    from reasoning_gym.factory import CURRICULA

    if dataset not in CURRICULA:
        raise PydanticCustomError(
            "levels",
            "data set {name} has no curriculum of its own; give the parameters of each level (levels)",
            {"name": repr(dataset)},
        )
    curriculum, level_params = CURRICULA[dataset](), []
    max_levels = max(len(attribute.levels) for attribute in curriculum.attributes.values())
    if count > max_levels:
        raise PydanticCustomError(
            "levels",
            "the curriculum of data set {name} has {most} levels, not {count}",
            {"name": repr(dataset), "most": max_levels, "count": count},
        )
    context = DefaultCurriculumContext(mode=RangeAttributeMode.UPPER_BOUND)
    for level in range(count):
        curriculum.set_global_level(level)
        config = curriculum.generate_configuration({}, context=context)
        level_params.append({field: getattr(config, field) for field in _curriculum_params(curriculum)})
    return level_params


def _curriculum_params(curriculum: BaseCurriculum) -> list[str]:
    """Return the names of parameters changed by a curriculum."""
    names = ("field_name", "lower_field_name", "upper_field_name")
    attributes = curriculum.attributes.values()
    return [getattr(attribute, name) for attribute in attributes for name in names if hasattr(attribute, name)]


def _check_params(dataset: str, params: Mapping[str, object]) -> None:
    config = available_datasets()[dataset][1]
    fields = {f.name: f for f in dataclasses.fields(config) if f.name not in ("seed", "size")}
    for key, value in params.items():
        if key not in fields:
            raise PydanticCustomError(
                "params",
                "data set {name} has no parameter {key}{hint}",
                {"name": repr(dataset), "key": repr(key), "hint": did_you_mean(key, fields)},
            )
        if isinstance(value, bool) and fields[key].type in NUMERIC_TYPES:
            raise PydanticCustomError(
                "params", "{key} is a number, not {value}", {"key": repr(key), "value": str(value).lower()}
            )


def available_datasets() -> dict[str, tuple[type[ProceduralDataset], type]]:
    """Return the package's data sets by name: class, and class of parameters."""
    import reasoning_gym  # noqa: F401  registers the data sets
    from reasoning_gym.factory import DATASETS

    patch_scorers()
    return dict(DATASETS)


class ReasoningGym(Environment):
    r"""Questions from Reasoning Gym data sets, drawn until the splits have enough distinct questions.

    The environment uses one data set, or a ``mixture`` of several with weights. Each has its own parameters, or
    several ``levels`` of difficulty, which tasks report as ``level`` for a curriculum. The answer is the last
    ``\boxed{}`` or ``<answer>`` tag of the answering agent.

    The package draws item i of seed s with seed s + i, so adjacent seeds repeat each other's items, and small data
    sets repeat themselves. Questions are therefore assigned to splits by their own text and never repeat.
    """

    one_step: ClassVar[bool] = True

    dataset: str = Field(default="", description='name in Reasoning Gym; "": use mixture')
    params: PlainTable = Field(default={}, description="parameters of the data set, for all levels")
    levels: Levels = Field(
        default=0,
        description=(
            "number of levels from the data set's curriculum, or parameters for each level, easiest first; 0: one level"
        ),
    )
    mixture: Annotated[tuple[MixtureDataset, ...], Strict(False)] = Field(
        default=(), description="several data sets in place of one"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="seed of the questions")
    train_tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = Field(
        default=5000, description="number of training questions, over all data sets"
    )
    held_out_tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = Field(
        default=1000, description="number of questions in validation, and in test"
    )
    partial_credit: bool = Field(
        default=False, description="reward the package's score; false: 1 for a full score, else 0"
    )

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
        held_out = self.held_out_tasks
        counts: dict[Split, int] = {"train": self.train_tasks, "validation": held_out, "test": held_out}
        ordered_tasks: dict[Split, list[tuple[float, Task]]] = {split: [] for split in counts}
        seen: set[str] = set()
        total = sum(generator.weight for generator in self._generators.values())
        for generator in self._generators.values():
            share = generator.weight / total
            own_counts = {split: max(1, round(n * share)) for split, n in counts.items()}
            for split, tasks in self._sample_tasks(generator, own_counts, seen).items():
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
                data = {"entry": entry, **self._task_metadata(generator)}
                tasks[split].append(Task(f"{generator.key}/{index}", question, data))
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
