"""Losses of pairs: DPO (Rafailov et al. 2023), and what others have made of it.

With ``h`` the better side's log-ratio to the reference less the worse side's, each a sum over the actions of all agents
that are compared:

    z = beta · h + length_price · (|better| − |worse|) − margin
    sigmoid:  − (1 − smoothing) · log σ(z) − smoothing · log σ(−z)
    ipo:      (h − 1 / (2 beta))²

``ipo`` is IPO's (Azar et al. 2024), ``smoothing`` cDPO (Mitchell 2023), ``length_price`` R-DPO (Park et al. 2024),
``margin`` without a reference and over tokens SimPO (Meng et al. 2024), ``imitation`` RPO (Pang et al. 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.config.settings import Felt, NotNegative, Positive
from marft.trainer.objectives.pairs import PairObjectivePart

if TYPE_CHECKING:
    from torch import Tensor

    from marft.trainer.interfaces import PairInputs


class DPO(PairObjectivePart):
    """``−log σ(β · (log-ratio of the better side − log-ratio of the worse side))``, averaged over comparisons."""

    # how sharply sides are told apart, and so how close to the reference policies stay
    beta: Annotated[Positive, Felt] = 0.1
    loss: Literal["sigmoid", "ipo"] = "sigmoid"  # ipo: squared distance of the log-ratio from 1 / (2 beta)
    smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0  # share of pairs that are taken to be the wrong way round
    margin: NotNegative = 0.0  # by how much more than 0 sides are to be told apart
    length_price: NotNegative = 0.0  # what a decision more is taken to have cost, so that length is no merit by itself
    imitation: NotNegative = 0.0  # weight of the better side's mean −log π beside the loss

    @model_validator(mode="after")
    def _check_loss(self) -> DPO:
        idle = [key for key in ("smoothing", "margin", "length_price") if getattr(self, key)]
        if self.loss == "ipo" and idle:
            raise PydanticCustomError("loss", "loss = 'ipo' has no {key}; remove it", {"key": idle[0]})
        return self

    def pair_losses(self, inputs: PairInputs) -> Tensor:
        """The loss of each comparison, [P]."""
        h = inputs.better - inputs.worse
        if self.loss == "ipo":
            losses = (h - 0.5 / self.beta).square()
        else:
            z = self.beta * h + self.length_price * (inputs.better_length - inputs.worse_length) - self.margin
            losses = (1 - self.smoothing) * _log1p_exp(-z) + self.smoothing * _log1p_exp(z)
        return losses - self.imitation * inputs.better_log_prob


def _log1p_exp(x: Tensor) -> Tensor:
    """log(1 + e^x) = −log σ(−x), whose derivative at 0 is ½."""
    return x.logaddexp(x.new_zeros(()))
