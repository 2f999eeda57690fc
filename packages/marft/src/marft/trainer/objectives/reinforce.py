"""REINFORCE: the plain policy gradient (Williams 1992)."""

from __future__ import annotations

from marft.config.interfaces.objective import LossInputs, LossOutput, Objective


class Reinforce(Objective):
    """``−A log π``: on-policy, intended for one epoch with one minibatch."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss of each unit, shape [U]."""
        return LossOutput(-inputs.advantages * inputs.log_probs)
