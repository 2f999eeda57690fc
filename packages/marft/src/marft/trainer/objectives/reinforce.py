"""The policy gradient itself (Williams 1992)."""

from __future__ import annotations

from marft.config.parts import ObjectivePart
from marft.trainer.interfaces import LossInputs, LossOutput


class Reinforce(ObjectivePart):
    """``−A log π``: on-policy, so one epoch of one minibatch is what it is made for."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(-inputs.advantages * inputs.log_probs)
