"""Validated options for the command ``marft worth``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from marft.common.errors import UserError
from marft.config.settings import did_you_mean

PARTS = ("single", "swap", "leave-out", "ablation", "counterfactual")


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Options of the comparison.

    Args:
        checkpoint: checkpoint of the team.
        only: subset of :data:`PARTS`; empty for all.
        tasks: number of held-out tasks; 0 for the recipe's value.
        samples: attempts per task, for the team and for every arm.
        attempts: maximum attempts of a single agent per task.
        resamples: number of resamples per action.
        cross_checkpoints: checkpoints for cross-play.
        single: run of a single agent to compare with the team.
        paraphrase: source of paraphrased messages: ``base``, the name of a policy, ``module:function``, a function of a
            text, or "" for none.
        ignore_cache: True to ignore the cache.

    Raises:
        UserError: unknown part, or a count below its minimum.
    """

    checkpoint: str = "last"
    only: Sequence[str] = ()
    tasks: int = 0
    samples: int = 1
    attempts: int = 16
    resamples: int = 3
    cross_checkpoints: Sequence[str] = ("base", "last", "best")
    single: Path | None = None
    paraphrase: str | Callable[[str], str] = "base"
    ignore_cache: bool = False

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in PARTS:
                raise UserError(f"only: {name!r} is none of {', '.join(PARTS)}{did_you_mean(name, PARTS)}")
        for name in ("samples", "attempts", "resamples"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is a whole number from 1 on, and this is {getattr(self, name)}")
        if self.tasks < 0:
            raise UserError(f"tasks is a whole number from 0 on, and this is {self.tasks}")

    @property
    def parts(self) -> tuple[str, ...]:
        """Requested parts, in their fixed order."""
        return tuple(part for part in PARTS if part in self.only or not self.only)
