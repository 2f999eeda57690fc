"""Settings for ``[synthesis]``: a teacher's episodes and filters for a cold start."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.config.paths import ExpandUser
from marft.config.sections import Section
from marft.config.settings import Count, Fraction, NonNegativeCount, SmallCount
from marft_lab.synthesis.candidates import Filter


class SynthesisSettings(Section):
    """Synthesis of imitation data from a teacher's episodes, by ``marft synthesize``."""

    key: ClassVar[str] = "synthesis"

    teacher: Annotated[str, ExpandUser] = Field(
        default="",
        description=(
            'teacher: "scripts" of the environment, the folder of a run, checkpoint or export, or a recipe; overridden '
            "by --teacher"
        ),
    )
    split: str = Field(
        default="train", description='split of the tasks; only "train" is valid, to keep held-out tasks out of training'
    )
    tasks: NonNegativeCount = Field(
        default=512, description="number of tasks, from the start of the split; 0: every task"
    )
    attempts: SmallCount = Field(default=4, description="attempts per task")
    save_every: Count = Field(default=256, description="episodes per saved part")
    skill: Fraction = Field(default=1.0, description="skill of scripts: fraction of turns played well")
    filters: Annotated[tuple[Filter, ...], Strict(False)] = Field(
        default=(), description="filters, in order; []: success, handoffs, duplicates and leakage with their defaults"
    )
    max_per_task: NonNegativeCount = Field(default=2, description="maximum episodes per task, best first; 0: no limit")
    balance_by: str = Field(
        default="",
        description=(
            'field of the task data to balance, such as level: each value keeps as many episodes as the rarest; "": no '
            "balance"
        ),
    )

    @field_validator("split")
    @classmethod
    def _check_split(cls, split: str) -> str:
        if split in ("validation", "test"):
            raise PydanticCustomError(
                "split",
                "the {split} split is held out: what is learned from it can no longer be measured; use train",
                {"split": split},
            )
        if split != "train":
            raise PydanticCustomError("split", "no split is called {split}; it is train", {"split": repr(split)})
        return split
