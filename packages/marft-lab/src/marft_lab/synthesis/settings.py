"""Cold starts: which episodes a teacher plays, and which of them a team begins by imitating."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.config.folders import AtHome
from marft.config.parts import FilterPlugin
from marft.config.sections import Section
from marft.config.settings import Count, CountOrNone, Few, Fraction


class SynthesisSettings(Section):
    """How ``marft synthesize`` makes supervised data of what a teacher plays."""

    key: ClassVar[str] = "synthesis"

    # who plays: "scripts" (the environment's own), the folder of a run, of a checkpoint or of an export, or a recipe;
    # --teacher names it
    teacher: Annotated[str, AtHome] = ""
    split: str = "train"  # whose tasks are played; no other can be named, for what is held out is never learned from
    tasks: CountOrNone = 512  # that are played, the first of the split; 0: all
    attempts: Few = 4  # at each of them
    played_together: Count = 256  # episodes that are kept as soon as all of them have been played
    skill: Fraction = 1.0  # of scripts: the share of turns that are played well
    # what is left out, in this order; []: success, handoffs, duplicates and leakage, each as it is
    filters: Annotated[tuple[FilterPlugin, ...], Strict(False)] = ()
    per_task: CountOrNone = 2  # episodes of a task that are kept, at most, the best ones; 0: all
    balance: str = ""  # a field of the tasks' data, such as level: of each value as many as of the rarest; "": none

    @field_validator("split")
    @classmethod
    def _never_held_out(cls, split: str) -> str:
        if split in ("validation", "test"):
            raise PydanticCustomError(
                "split", "the {split} split is held out: what is learned from it can no longer be measured; use train",
                {"split": split},
            )  # fmt: skip
        if split != "train":
            raise PydanticCustomError("split", "no split is called {split}; it is train", {"split": repr(split)})
        return split
