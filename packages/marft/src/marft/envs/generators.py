"""Leveled data sets: Reasoning Gym data sets with their parameters, one for each level of difficulty."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.config.settings import NonEmptyString, PlainTable, Positive, Settings, did_you_mean
from marft.envs.safe_eval import patch_scorers

NUMERIC_TYPES = (int, float, "int", "float")  # type hints of numeric parameters
MAX_LEVELS = 100
# number of levels from the data set's own curriculum, the easiest first; or parameters for each level; 0: one level
Levels = Annotated[int, Field(ge=0, le=MAX_LEVELS)] | Annotated[tuple[PlainTable, ...], Strict(False)]


class Generator(NamedTuple):
    """Data set at one level; ``dataset`` is the package's data set, ``weight`` its share of all questions."""

    name: str
    level: int  # from 1; 0 without levels
    weight: float
    dataset: Any

    @property
    def key(self) -> str:
        """Prefix of its task ids."""
        return f"{self.name}.{self.level}" if self.level else self.name

    def score(self, answer: str | None, entry: Mapping[str, Any]) -> float:
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

    dataset: NonEmptyString  # name in Reasoning Gym
    weight: Positive = 1.0  # sampling weight of its questions, relative to the other data sets
    params: PlainTable = {}  # parameters of the data set, for all levels
    # number of levels from its own curriculum, or parameters for each level, easiest first; 0: one level
    levels: Levels = 0
    cohort: str = ""  # label of its questions; "": name of the data set

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
        for _ in build_generators(
            MixtureDataset.model_construct(dataset=dataset, params=params, levels=levels), seed=0
        ):
            pass
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


def _curriculum_levels(dataset: str, count: int) -> list[dict[str, Any]]:
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


def _curriculum_params(curriculum: Any) -> list[str]:
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


def available_datasets() -> dict[str, tuple[Any, Any]]:
    """Return the package's data sets by name: class, and class of parameters."""
    import reasoning_gym  # noqa: F401  registers the data sets
    from reasoning_gym.factory import DATASETS

    patch_scorers()
    return dict(DATASETS)
