"""REINFORCE: the plain policy gradient (Williams 1992)."""

from __future__ import annotations

from marft.config.plugin_types import ObjectivePart
from marft.trainer.interfaces import LossInputs, LossOutput


class Reinforce(ObjectivePart):
    """``−A log π``: on-policy, intended for one epoch with one minibatch."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss of each unit, shape [U]."""
        return LossOutput(-inputs.advantages * inputs.log_probs)
