"""Pairwise preference losses: DPO (Rafailov et al. 2023) and its variants.

``h`` is the log-ratio to the reference of the better side minus that of the worse side. Each log-ratio is a sum over
the compared actions of all agents.

    z = beta · h + length_penalty · (|better| − |worse|) − margin
    sigmoid:  − (1 − label_smoothing) · log σ(z) − label_smoothing · log σ(−z)
    ipo:      (h − 1 / (2 beta))²

Sources: ``ipo`` is IPO (Azar et al. 2024), ``label_smoothing`` cDPO (Mitchell 2023), ``length_penalty`` R-DPO (Park et
al. 2024), ``nll_coefficient`` RPO (Pang et al. 2024). ``margin`` without a reference and over tokens is SimPO (Meng et
al. 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.config.settings import NonNegative, NotTiny, Positive
from marft.trainer.objectives.pairs import PairObjective

if TYPE_CHECKING:
    from torch import Tensor

    from marft.config.interfaces.objective import PairInputs


class DPO(PairObjective):
    """``−log σ(β · (log-ratio of the better side − log-ratio of the worse side))``, averaged over pairs."""

    beta: Annotated[Positive, NotTiny] = Field(
        default=0.1, description="inverse temperature of the loss; larger values keep policies closer to the reference"
    )
    loss: Literal["sigmoid", "ipo"] = Field(
        default="sigmoid", description='"ipo": squared distance between h and 1 / (2 beta)'
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        default=0.0, description="assumed fraction of pairs with swapped sides"
    )
    margin: NonNegative = Field(default=0.0, description="minimum separation of the two sides, subtracted from z")
    length_penalty: NonNegative = Field(
        default=0.0, description="length penalty per decision, against a bias to longer answers"
    )
    nll_coefficient: NonNegative = Field(
        default=0.0, description="weight of an added loss: mean −log π of the better side"
    )

    @model_validator(mode="after")
    def _check_loss(self) -> DPO:
        idle = [key for key in ("label_smoothing", "margin", "length_penalty") if getattr(self, key)]
        if self.loss == "ipo" and idle:
            raise PydanticCustomError("loss", "loss = 'ipo' has no {key}; remove it", {"key": idle[0]})
        return self

    def pair_losses(self, inputs: PairInputs) -> Tensor:
        """Return the loss of each pair, shape [P]."""
        h = inputs.better - inputs.worse
        if self.loss == "ipo":
            losses = (h - 0.5 / self.beta).square()
        else:
            z = self.beta * h + self.length_penalty * (inputs.better_length - inputs.worse_length) - self.margin
            losses = (1 - self.label_smoothing) * _log1p_exp(-z) + self.label_smoothing * _log1p_exp(z)
        return losses - self.nll_coefficient * inputs.better_log_prob


def _log1p_exp(x: Tensor) -> Tensor:
    """Return log(1 + e^x) = −log σ(−x); the derivative at 0 is ½."""
    return x.logaddexp(x.new_zeros(()))
