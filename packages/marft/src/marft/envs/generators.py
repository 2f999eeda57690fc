"""Leveled data sets: Reasoning Gym data sets with their parameters, one for each level of difficulty."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.config.settings import Filled, Plain, Positive, Settings, did_you_mean
from marft.envs.evaluated import tame

NUMBERS = (int, float, "int", "float")  # type hints of numeric parameters
MOST_LEVELS = 100
# number of levels from the data set's own curriculum, the easiest first; or parameters for each level; 0: one level
Levels = Annotated[int, Field(ge=0, le=MOST_LEVELS)] | Annotated[tuple[Plain, ...], Strict(False)]


class Generator(NamedTuple):
    """Data set at one level; ``made`` is the package's data set, ``weight`` its share of all questions."""

    name: str
    level: int  # from 1; 0 without levels
    weight: float
    made: Any

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
            return float(self.made.score_answer(answer, entry))
        except Exception:  # noqa: BLE001  many scorers raise for an answer that is not a number or table
            self.made.score_answer(entry["answer"], entry)
            return 0.0


class Member(Settings):
    """Data set in a mixture."""

    dataset: Filled  # name in Reasoning Gym
    weight: Positive = 1.0  # sampling weight of its questions, relative to the other data sets
    params: Plain = {}  # parameters of the data set, for all levels
    # number of levels from its own curriculum, or parameters for each level, easiest first; 0: one level
    levels: Levels = 0
    cohort: str = ""  # label of its questions; "": name of the data set

    @property
    def name(self) -> str:
        """Label of its questions."""
        return self.cohort or self.dataset

    @model_validator(mode="after")
    def _check(self) -> Member:
        check(self.dataset, self.params, self.levels)
        return self


def check(dataset: str, params: Mapping[str, object], levels: int | Sequence[Mapping[str, object]]) -> None:
    """Check a data set's support for these parameters and levels.

    Raises:
        PydanticCustomError: it does not; the message names the key and the problem.
    """
    datasets = datasets_known()
    if dataset not in datasets:
        raise PydanticCustomError(
            "dataset", "reasoning_gym has no data set {name}{hint}",
            {"name": repr(dataset), "hint": did_you_mean(dataset, datasets)},
        )  # fmt: skip
    for table in (params, *(() if isinstance(levels, int) else levels)):
        _check_params(dataset, table)
    try:
        for _ in generators(Member.model_construct(dataset=dataset, params=params, levels=levels), seed=0):
            pass
    except PydanticCustomError:
        raise
    except Exception as error:  # each data set checks its own parameters with its own errors
        raise PydanticCustomError(
            "params", "data set {name}: {error}", {"name": repr(dataset), "error": str(error)}
        ) from error


def generators(member: Member, seed: int) -> Iterator[Generator]:
    """Yield one leveled data set for each level.

    Raises:
        PydanticCustomError: the data set has no curriculum, or one with fewer levels.
        Exception: any error of the package for invalid parameters.
    """
    cls, config = datasets_known()[member.dataset]
    tables = _own_levels(member.dataset, member.levels) if isinstance(member.levels, int) else member.levels
    weight = member.weight / max(len(tables), 1)
    for level, table in enumerate(tables or [{}], 1 if tables else 0):
        chosen = {**table, **member.params} if isinstance(member.levels, int) else {**member.params, **table}
        yield Generator(member.name, level, weight, cls(config(**{**chosen, "seed": seed, "size": 2**31})))


def _own_levels(dataset: str, count: int) -> list[dict[str, Any]]:
    """Return the parameters for the easiest levels in a data set's own curriculum.

    Each level sets all attributes of the curriculum together.
    """
    if not count:
        return []
    from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode
    from reasoning_gym.factory import CURRICULA

    if dataset not in CURRICULA:
        raise PydanticCustomError(
            "levels", "data set {name} has no curriculum of its own; give the parameters of each level (levels)",
            {"name": repr(dataset)},
        )  # fmt: skip
    curriculum, found = CURRICULA[dataset](), []
    most = max(len(attribute.levels) for attribute in curriculum.attributes.values())
    if count > most:
        raise PydanticCustomError(
            "levels", "the curriculum of data set {name} has {most} levels, not {count}",
            {"name": repr(dataset), "most": most, "count": count},
        )  # fmt: skip
    only_these = DefaultCurriculumContext(mode=RangeAttributeMode.UPPER_BOUND)
    for level in range(count):
        curriculum.set_global_level(level)
        made = curriculum.generate_configuration({}, context=only_these)
        found.append({field: getattr(made, field) for field in _moved(curriculum)})
    return found


def _moved(curriculum: Any) -> list[str]:
    """Return the names of parameters changed by a curriculum."""
    names = ("field_name", "lower_field_name", "upper_field_name")
    attributes = curriculum.attributes.values()
    return [getattr(attribute, name) for attribute in attributes for name in names if hasattr(attribute, name)]


def _check_params(dataset: str, params: Mapping[str, object]) -> None:
    config = datasets_known()[dataset][1]
    fields = {f.name: f for f in dataclasses.fields(config) if f.name not in ("seed", "size")}
    for key, value in params.items():
        if key not in fields:
            raise PydanticCustomError(
                "params", "data set {name} has no parameter {key}{hint}",
                {"name": repr(dataset), "key": repr(key), "hint": did_you_mean(key, fields)},
            )  # fmt: skip
        if isinstance(value, bool) and fields[key].type in NUMBERS:
            raise PydanticCustomError(
                "params", "{key} is a number, not {value}", {"key": repr(key), "value": str(value).lower()}
            )


def datasets_known() -> dict[str, tuple[Any, Any]]:
    """Return the package's data sets by name: class, and class of parameters."""
    import reasoning_gym  # noqa: F401  registers the data sets
    from reasoning_gym.factory import DATASETS

    tame()
    return dict(DATASETS)
