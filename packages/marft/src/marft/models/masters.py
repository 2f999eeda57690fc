"""Master weights: what learns of a model in half precision (Micikevicius et al. 2018).

A training step moves a weight by far less than half precision can tell apart. So each weight that learns has a master
in float32: gradients add up beside it, the optimizer steps it, and the model computes with it rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from marft.models.parts import local, part_of


class Masters:
    """The masters of a model's weights. Whoever writes to them rounds them.

    Args:
        weights: in half precision, by name; where ranks hold parts of them, the masters are in parts, too.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        self._weights = dict(weights)
        self.parameters = {name: nn.Parameter(weight.detach().float()) for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.register_post_accumulate_grad_hook(partial(_hand_over, self.parameters[name]))

    @torch.no_grad()
    def round(self) -> None:
        """Have the model compute with what the masters are now."""
        rounded = [local(weight) for weight in self._weights.values()]
        torch._foreach_copy_(rounded, [local(master) for master in self.parameters.values()])

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Become what whole weights are, and the model their rounding."""
        for name, master in self.parameters.items():
            local(master).copy_(local(part_of(weights[name], master)))
        self.round()


def _hand_over(master: nn.Parameter, weight: Tensor) -> None:
    """Add a weight's gradient, which is of one micro-batch, to its master's."""
    grad, weight.grad = weight.grad, None
    assert grad is not None
    if master.grad is None:
        master.grad = grad.float()
    else:
        master.grad.add_(grad)
