"""Base class for objectives on preference pairs: reference policy, and a per-action loss that is linear in log π."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.config.interfaces.objective import LossInputs, LossOutput, Objective, PairInputs
from marft.config.paths import resolve_recipe_path
from marft.config.settings import NonEmptyString, NonNegativeCount

if TYPE_CHECKING:
    from torch import Tensor

START, BASE, NONE = "start", "base", "none"


class PairObjective(Objective, ABC):
    """Base class for objectives on preference pairs; a pure function.

    Called on single actions, it is ``−A log π``. The learner computes A from the gradient of :meth:`pair_losses`.
    """

    reads_pairs: ClassVar[bool] = True

    reference: NonEmptyString = Field(
        default=START,
        description=(
            'reference of the log-ratios: "start" (policies at the start of the run), "base" (untuned base), '
            '"none", or the folder of a checkpoint'
        ),
    )
    refresh: NonNegativeCount = Field(
        default=0, description="training steps between updates of the reference to the current policies; 0: no updates"
    )

    @field_validator("reference")
    @classmethod
    def _resolve_reference(cls, reference: str, info: ValidationInfo) -> str:
        return reference if reference in (START, BASE, NONE) else resolve_recipe_path(reference, info.context)

    @model_validator(mode="after")
    def _check_refresh(self) -> Self:
        if self.refresh and self.reference in (BASE, NONE):
            raise PydanticCustomError(
                "refresh", "refresh does nothing with reference = '{of}'; use 'start'", {"of": self.reference}
            )
        return self

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return ``−A log π`` of each unit, shape [U]."""
        return LossOutput(-inputs.advantages * inputs.log_probs)

    @abstractmethod
    def pair_losses(self, inputs: PairInputs) -> Tensor:
        """Return the loss of each pair, shape [P]."""
