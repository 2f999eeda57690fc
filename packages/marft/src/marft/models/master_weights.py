"""Float32 master weights for training in half precision (Micikevicius et al. 2018).

A training step changes a weight by far less than half precision can represent. So each trained weight has a float32
master. Gradients accumulate on the master, the optimizer updates it, and the model computes with its rounded value.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from marft.models.dtensors import local_shard, shard_like


class MasterWeights:
    """Float32 master weights for a model. After every update, call :meth:`copy_to_model`.

    Args:
        weights: half-precision weights by name. If the weights are sharded, the masters are sharded too.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        self._weights = dict(weights)
        self.parameters = {name: nn.Parameter(weight.detach().float()) for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.register_post_accumulate_grad_hook(partial(_move_gradient, self.parameters[name]))

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copy the masters to the model's weights, rounded."""
        model_weights = [local_shard(weight) for weight in self._weights.values()]
        torch._foreach_copy_(model_weights, [local_shard(master) for master in self.parameters.values()])

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set the masters to full weights, and the model's weights to their rounded values."""
        for name, master in self.parameters.items():
            local_shard(master).copy_(local_shard(shard_like(weights[name], master)))
        self.copy_to_model()


def _move_gradient(master: nn.Parameter, weight: Tensor) -> None:
    """Add the gradient from one micro-batch to the master's gradient."""
    grad, weight.grad = weight.grad, None
    assert grad is not None
    if master.grad is None:
        master.grad = grad.float()
    else:
        master.grad.add_(grad)
