"""Settings for ``[synthesis]``: a teacher's episodes and filters for a cold start."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.config.paths import ExpandUser
from marft.config.sections import Section
from marft.config.settings import Count, Fraction, NonNegativeCount, SmallCount
from marft_lab.synthesis.candidates import Filter


class SynthesisSettings(Section):
    """Synthesis of imitation data from a teacher's episodes, by ``marft synthesize``."""

    key: ClassVar[str] = "synthesis"

    # teacher: "scripts" for the environment's own, the folder of a run, a checkpoint or an export, or a recipe;
    # --teacher overrides it
    teacher: Annotated[str, ExpandUser] = ""
    split: str = "train"  # split of the tasks; only "train" is valid, because held-out tasks must not be learned
    tasks: NonNegativeCount = 512  # number of tasks, from the start of the split; 0 for all
    attempts: SmallCount = 4  # attempts per task
    save_every: Count = 256  # episodes per saved part
    skill: Fraction = 1.0  # skill of scripts: fraction of turns played well
    # filters, in order; [] for success, handoffs, duplicates and leakage with their defaults
    filters: Annotated[tuple[Filter, ...], Strict(False)] = ()
    max_per_task: NonNegativeCount = 2  # maximum episodes per task, the best ones; 0 for all
    # field of the task data to balance, such as level; every value keeps as many episodes as the rarest; "" for no
    # balance
    balance_by: str = ""

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
