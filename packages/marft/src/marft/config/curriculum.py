"""Curriculum settings (``[curriculum]``): task difficulty follows the team's success."""

from __future__ import annotations

from typing import Annotated

from pydantic import Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.config.settings import Count, Fraction, NonEmptyString, Settings


class CurriculumSettings(Settings):
    """Curriculum for training tasks by difficulty level; harder levels follow when the team solves the current ones.

    Held-out tasks always come from all levels.
    """

    level_field: NonEmptyString = "level"  # field of a task's data with its level
    # values of the level field, easiest first; []: sorted by number
    levels: Annotated[tuple[str | int, ...], Strict(False)] = ()
    initial_levels: Count = 1  # number of levels at the start, the easiest first
    promote_threshold: Fraction = 0.8  # minimum success rate at the hardest active level to add a harder level
    demote_threshold: Fraction = 0.2  # maximum success rate at the hardest active level to remove the level
    episodes: Count = 64  # episodes at the hardest active level before each decision
    review: Fraction = 0.25  # share of tasks from easier levels, split evenly between them

    @model_validator(mode="after")
    def _check_thresholds(self) -> CurriculumSettings:
        if self.demote_threshold >= self.promote_threshold:
            raise PydanticCustomError(
                "curriculum", "demote_threshold is at or above promote_threshold: it would go both ways; set it below"
            )
        if len(set(map(str, self.levels))) < len(self.levels):  # tasks store their level as text
            raise PydanticCustomError("curriculum", "levels names one twice")
        if self.review == 1:
            raise PydanticCustomError("curriculum", "review = 1 leaves nothing for the hardest level; set it below 1")
        return self
