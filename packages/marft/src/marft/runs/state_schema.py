"""State schema: fields and types of a checkpoint's ``state.json``."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, model_validator

from marft.common import atomic
from marft.common.prompt_history import PromptHistory, PromptVersion

STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class CurriculumState:
    """Curriculum state over the draws of training tasks.

    From draw ``begins[i]`` on, ``hardest[i]`` is the maximum difficulty level. Since the last change, ``tried``
    episodes were played at this level, and ``solved`` of them were solved.

    A draw keeps its level once it may have started. So the task at a position of the pass does not depend on when it is
    requested.

    >>> CurriculumState((0, 96), (0, 1)).level_at(95), CurriculumState((0, 96), (0, 1)).level_at(96)
    (0, 1)
    """

    begins: tuple[int, ...] = ()
    hardest: tuple[int, ...] = ()
    solved: int = 0
    tried: int = 0

    def interval_index(self, draw: int) -> int:
        """Return the index for a draw's interval in ``begins``."""
        return max(bisect_right(self.begins, draw) - 1, 0)

    def level_at(self, draw: int) -> int:
        """Return the maximum level at a draw."""
        return self.hardest[self.interval_index(draw)]


class LogDigestSchema(BaseModel):
    """Schema of a log mark."""

    model_config = ConfigDict(extra="forbid", strict=True)

    length: NonNegativeInt
    digest: str


class CurriculumSchema(BaseModel):
    """Schema of a curriculum state."""

    model_config = ConfigDict(extra="forbid", strict=True)

    begins: list[NonNegativeInt]
    hardest: list[NonNegativeInt]
    solved: NonNegativeInt
    tried: NonNegativeInt

    @model_validator(mode="after")
    def _check_intervals(self) -> CurriculumSchema:
        if not self.begins or len(self.begins) != len(self.hardest) or self.begins[0] or self.solved > self.tried:
            raise ValueError("curriculum: stretches that are none of a run")
        if sorted(set(self.begins)) != self.begins:
            raise ValueError("curriculum: stretches that are in no order")
        return self


class StateSchema(BaseModel):
    """Schema of ``state.json``. Digests detect changes, but do not authenticate the author."""

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
    set_aside: dict[str, str] = {}  # absent if empty
    curriculum: CurriculumSchema | None = None
    profiles: dict[str, Any] | None = None  # prompt lineage
    files: dict[str, str]
    log: LogDigestSchema
    models: dict[str, str]
    code: dict[str, str]
    version: str

    def curriculum_state(self) -> CurriculumState | None:
        """Return the curriculum state, or None without a curriculum."""
        saved = self.curriculum
        return CurriculumState(tuple(saved.begins), tuple(saved.hardest), saved.solved, saved.tried) if saved else None

    def prompt_lineage(self) -> PromptHistory | None:
        """Return the prompt lineage, or None without learned prompts.

        Raises:
            ValidationError: the lineage is invalid.
        """
        return LINEAGE_ADAPTER.validate_python(self.profiles) if self.profiles else None


def read_learned_prompts(checkpoint: Path | None) -> tuple[PromptVersion, ...]:
    """Return the learned prompts in a verified checkpoint; empty without a checkpoint or learned prompts."""
    if checkpoint is None or not (checkpoint / STATE_FILE).is_file():
        return ()
    table = atomic.read_json(checkpoint / STATE_FILE).get("profiles")
    return LINEAGE_ADAPTER.validate_python(table).current_versions() if table else ()


def _check_lineage(lineage: PromptHistory) -> PromptHistory:
    if problems := lineage.problems():
        raise ValueError("; ".join(problems))
    return lineage


LINEAGE_ADAPTER = TypeAdapter(Annotated[PromptHistory, AfterValidator(_check_lineage)])
