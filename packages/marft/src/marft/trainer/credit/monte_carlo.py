"""Discounted return from each decision, without a critic: GAE with λ = 1 and V = 0."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Values
from marft.config.settings import Fraction
from marft.trainer.credit.gae import GAE


class MonteCarlo(Credit):
    """``G_k = r_k + γ_k G_k'`` along a chain (see :class:`marft.trainer.credit.gae.GAE`).

    The remaining return of a truncated episode counts as 0, because there is no critic to estimate the value.
    """

    needs_critic: ClassVar[bool] = False

    successor: Literal["joint", "agent", "graph"] = Field(
        default="joint", description='chain of decisions; see credit "gae"'
    )
    gamma_token: Fraction = Field(default=1.0, description="discount between tokens of an action")
    gamma_agent: Fraction = Field(default=1.0, description="discount between actions of an environment step")
    gamma_step: Fraction = Field(default=0.99, description="discount between environment steps")

    @property
    def per_agent(self) -> bool:
        """True if each agent has its own chain."""
        return self.successor == "agent"

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return the discounted return from each decision: GAE with λ = 1 and values of 0."""
        zeros = Values([np.zeros(size) for size in inputs.sizes()])
        estimator = GAE(
            successor=self.successor,
            gamma_token=self.gamma_token,
            gamma_agent=self.gamma_agent,
            gamma_step=self.gamma_step,
            lambda_token=1.0,
            lambda_agent=1.0,
            lambda_step=1.0,
        )
        return CreditOutput(
            estimator.assign(CreditInputs(inputs.episodes, inputs.level, zeros, inputs.costs)).advantages
        )
