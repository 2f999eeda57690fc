"""The discounted return from a decision on, without a critic: what λ = 1 leaves of GAE when V is 0 throughout."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from marft.config.parts import CreditPart
from marft.config.settings import Fraction
from marft.trainer.credit.gae import GAE
from marft.trainer.interfaces import CreditInputs, Credits, Values


class MonteCarlo(CreditPart):
    """``G_k = r_k + γ_k G_k'`` along a chain (see :class:`marft.trainer.credit.gae.GAE`). A truncated episode is
    taken as if nothing came after it: without a critic nobody knows."""

    needs_critic: ClassVar[bool] = False

    successor: Literal["joint", "agent", "graph"] = "joint"  # the chain: which decision follows which
    gamma_token: Fraction = 1.0  # discount from token to token of an action
    gamma_agent: Fraction = 1.0  # from action to action inside an environment step
    gamma_step: Fraction = 0.99  # from environment step to environment step

    @property
    def by_agent(self) -> bool:
        """Along a chain of its own, it alone."""
        return self.successor == "agent"

    def assign(self, inputs: CreditInputs) -> Credits:
        """The return from each decision on: the whole estimate of GAE with λ = 1 and values of 0."""
        zeros = Values([np.zeros(size) for size in inputs.sizes()])
        whole = GAE(
            successor=self.successor, gamma_token=self.gamma_token, gamma_agent=self.gamma_agent,
            gamma_step=self.gamma_step, lambda_token=1.0, lambda_agent=1.0, lambda_step=1.0,
        )  # fmt: skip
        return Credits(whole.assign(CreditInputs(inputs.episodes, inputs.level, zeros, inputs.costs)).advantages)
