"""Float32 master weights for training in half precision (Micikevicius et al. 2018).

A training step changes a weight by far less than half precision can represent. So each trained weight has a float32
master. Gradients accumulate on the master, the optimizer updates it, and the model computes with its rounded value.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from marft.models.parts import local, part_of


class Masters:
    """Float32 master weights for a model. After every update, call :meth:`round`.

    Args:
        weights: half-precision weights by name. If the weights are sharded, the masters are sharded too.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        self._weights = dict(weights)
        self.parameters = {name: nn.Parameter(weight.detach().float()) for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.register_post_accumulate_grad_hook(partial(_hand_over, self.parameters[name]))

    @torch.no_grad()
    def round(self) -> None:
        """Copy the masters to the model's weights, rounded."""
        rounded = [local(weight) for weight in self._weights.values()]
        torch._foreach_copy_(rounded, [local(master) for master in self.parameters.values()])

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Set the masters to full weights, and the model's weights to their rounded values."""
        for name, master in self.parameters.items():
            local(master).copy_(local(part_of(weights[name], master)))
        self.round()


def _hand_over(master: nn.Parameter, weight: Tensor) -> None:
    """Add the gradient from one micro-batch to the master's gradient."""
    grad, weight.grad = weight.grad, None
    assert grad is not None
    if master.grad is None:
        master.grad = grad.float()
    else:
        master.grad.add_(grad)
