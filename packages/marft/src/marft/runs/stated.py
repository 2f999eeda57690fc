"""What ``state.json`` of a checkpoint holds, type by type."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, model_validator

from marft.common import atomic
from marft.common.lineage import Lineage, Version

STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands: from draw ``begins[i]`` on ``hardest[i]`` is the hardest level that is asked; of ``tried``
    episodes at the last of them, since it is that, ``solved`` were.

    A draw is never moved to another level once it may have begun: what is drawn at a place of the pass is the same
    whenever that is asked.

    >>> Standing((0, 96), (0, 1)).at(95), Standing((0, 96), (0, 1)).at(96)
    (0, 1)
    """

    begins: tuple[int, ...] = ()
    hardest: tuple[int, ...] = ()
    solved: int = 0
    tried: int = 0

    def stretch(self, draw: int) -> int:
        """Which stretch of draws with one hardest level a draw is in."""
        return max(bisect_right(self.begins, draw) - 1, 0)

    def at(self, draw: int) -> int:
        """The hardest level that is asked at a draw."""
        return self.hardest[self.stretch(draw)]


class WrittenMark(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    length: NonNegativeInt
    digest: str


class WrittenStanding(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    begins: list[NonNegativeInt]
    hardest: list[NonNegativeInt]
    solved: NonNegativeInt
    tried: NonNegativeInt

    @model_validator(mode="after")
    def _goes_on(self) -> WrittenStanding:
        if not self.begins or len(self.begins) != len(self.hardest) or self.begins[0] or self.solved > self.tried:
            raise ValueError("curriculum: stretches that are none of a run")
        if sorted(set(self.begins)) != self.begins:
            raise ValueError("curriculum: stretches that are in no order")
        return self


class Written(BaseModel):
    """What ``state.json`` holds, type by type: digests say that nothing was changed since, not who wrote it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: NonNegativeInt
    environment_steps: NonNegativeInt
    best_step: NonNegativeInt
    best_score: float
    best_by: str
    tasks_drawn: NonNegativeInt
    tasks: str
    returns: NonNegativeInt
    cooled: float
    parts: dict[str, float]
    set_aside: dict[str, str] = {}  # absent where none is
    curriculum: WrittenStanding | None = None
    profiles: dict[str, Any] | None = None  # a lineage
    files: dict[str, str]
    log: WrittenMark
    models: dict[str, str]
    code: dict[str, str]
    version: str

    def standing(self) -> Standing | None:
        of = self.curriculum
        return Standing(tuple(of.begins), tuple(of.hardest), of.solved, of.tried) if of else None

    def lineage(self) -> Lineage | None:
        """
        Raises:
            ValidationError: it is none.
        """
        return LINEAGE.validate_python(self.profiles) if self.profiles else None


def told_at(checkpoint: Path | None) -> tuple[Version, ...]:
    """What agents were told in a checkpoint that has been verified, where that was learned; nothing where there is no
    checkpoint."""
    if checkpoint is None or not (checkpoint / STATE).is_file():
        return ()
    table = atomic.read_json(checkpoint / STATE).get("profiles")
    return LINEAGE.validate_python(table).told() if table else ()


def _holds_together(lineage: Lineage) -> Lineage:
    if problems := lineage.problems():
        raise ValueError("; ".join(problems))
    return lineage


LINEAGE = TypeAdapter(Annotated[Lineage, AfterValidator(_holds_together)])
