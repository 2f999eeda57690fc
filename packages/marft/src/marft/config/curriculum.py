"""How the difficulty of training tasks goes with the team's success (``[curriculum]``)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.config.settings import Count, Filled, Fraction, Settings


class CurriculumSettings(Settings):
    """Training tasks are drawn by levels of difficulty, harder ones as the team solves those before; held-out tasks are
    those of all levels, always."""

    by: Filled = "level"  # the field of tasks' data that says how hard each is
    levels: Annotated[tuple[str | int, ...], Strict(False)] = ()  # its values, easiest first; []: by their numbers
    start: Count = 1  # levels that are asked at first, the easiest ones
    up: Fraction = 0.8  # share of episodes at the hardest level asked that are solved, from which on a harder one is
    down: Fraction = 0.2  # the same, up to which an easier one is the hardest
    episodes: Count = 64  # at that level, after which its share is looked at
    review: Fraction = 0.25  # share of tasks that are drawn from easier levels, each as often

    @model_validator(mode="after")
    def _goes_one_way(self) -> CurriculumSettings:
        if self.down >= self.up:
            raise PydanticCustomError("curriculum", "down is at or above up: it would go both ways; set down < up")
        if len(set(map(str, self.levels))) < len(self.levels):  # tasks tell theirs in words
            raise PydanticCustomError("curriculum", "levels names one twice")
        if self.review == 1:
            raise PydanticCustomError("curriculum", "review = 1 leaves nothing for the hardest level; set it below 1")
        return self
