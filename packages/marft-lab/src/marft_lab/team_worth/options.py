"""What is asked of ``marft worth``, held to what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from marft.config.settings import did_you_mean

PARTS = ("single", "swap", "leave-out", "ablation", "counterfactual")


@dataclass(frozen=True, slots=True)
class Options:
    """
    Args:
        checkpoint: whose team it is about.
        only: some of :data:`PARTS`; none: all.
        tasks: how many held-out tasks; 0: as the recipe says.
        samples: the team's attempts at each task, and those of every arm.
        attempts: of a single agent at each task, at most.
        resamples: how often each action is sampled again.
        crossed: checkpoints that play together.
        single: a run of one agent, to hold against the team as well.
        paraphrase: who says messages in other words: ``base``, the name of a policy, ``module:function``, a function of
            a text, or "" for nobody.
        again: play what was played before too.
    """

    checkpoint: str = "last"
    only: Sequence[str] = ()
    tasks: int = 0
    samples: int = 1
    attempts: int = 16
    resamples: int = 3
    crossed: Sequence[str] = ("base", "last", "best")
    single: Path | None = None
    paraphrase: str | Callable[[str], str] = "base"
    again: bool = False

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in PARTS:
                raise ValueError(f"only: {name!r} is none of {', '.join(PARTS)}{did_you_mean(name, PARTS)}")
        for name in ("samples", "attempts", "resamples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is a whole number from 1 on, and this is {getattr(self, name)}")
        if self.tasks < 0:
            raise ValueError(f"tasks is a whole number from 0 on, and this is {self.tasks}")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are asked for, in their order."""
        return tuple(part for part in PARTS if part in self.only or not self.only)
