"""Backbone with weights sharded over several ranks (FSDP2: ``torch.distributed.fsdp.fully_shard``).

During training, each rank holds a shard of every weight. A layer is gathered when it is computed, in the forward and
again in the backward. Gradients of trained weights are summed when they are scattered. Embeddings, the last norm and
the head are gathered for a whole pass, because the head is read after the pass. Adapters are not sharded. Between
updates, one rank may hold the full weights for sampling and saving, or, only for saving, in CPU memory.

Every rank must run the same number of passes in the same order, because each pass consists of collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from marft.models.fused_decoder import fused_layer
from marft.models.parts import local, part_of, whole

if TYPE_CHECKING:
    from marft.models.backbone import Backbone

FUSED = "fused"  # name of the layer method that computes the layer without its modules


class _Pass(nn.Module):
    """Wrapper around a whole pass, for weights gathered at its start.

    It is not a part of the model, so the model's class stays unchanged.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        made = work()
        return made.clone() if made._is_view() else made  # a view would break FSDP's hooks


class Shards:
    """Shards of a backbone's weights: this rank keeps its shard and releases the rest. Every rank creates it together.

    Weights in CPU memory move to the device layer by layer, and only this rank's shard stays there.

    Args:
        mesh: one-dimensional mesh of the ranks.
    """

    def __init__(self, backbone: Backbone, mesh: DeviceMesh) -> None:
        self.gathered = False  # whether this rank holds the full weights
        # whether the full weights are only in CPU memory, so that no forward can run until the next update
        self.resting = False
        self._copies: dict[str, Tensor] | None = None  # full weights in CPU memory; {} if another rank has them
        self._model = backbone.model
        self._volatile = {name for name, _ in self._model.named_buffers()} - set(self._model.state_dict())
        adapters = {
            parameter
            for layer in backbone.layers.values()
            for name, parameter in layer.named_parameters()
            if not name.startswith("base.")
        }
        self._pass = _Pass(backbone.model)
        layers = _layers(backbone)
        in_float32 = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # gradients are reduced in float32
        for layer in layers:
            fully_shard(layer, mesh=mesh, ignored_params=adapters, mp_policy=in_float32)
            if backbone.fused:
                setattr(layer, FUSED, MethodType(fused_layer, layer))
                register_fsdp_forward_method(layer, FUSED)
        fully_shard(self._pass, mesh=mesh, ignored_params=adapters, reshard_after_forward=False, mp_policy=in_float32)
        for adapter in adapters:
            adapter.data = adapter.data.to(backbone.device)  # same device as the shards
        self._modules: list[Any] = [self._pass, *layers]
        self._layers: list[Any] = layers
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)  # gradients are sums: their weights already include all ranks
            module.set_force_sum_reduction_for_comms(True)  # gloo does not support a factor in its sum
        self._root().set_reduce_scatter_unused_params(True)  # for the head on an idle rank
        self.parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self._model.named_parameters() if parameter not in adapters
        }
        with torch.no_grad():
            self._pass(lambda: torch.zeros(()))  # a first pass determines the root module

    def through(self, work: Callable[[], Tensor]) -> Tensor:
        """Run a pass: ``work`` computes the last hidden states, [N, D]."""
        if self.gathered:
            return work()
        assert not self.resting, "one rank passes through what lies in parts"
        self.let_go()  # weights gathered by the previous pass may be outdated
        found: Tensor = self._pass(work)
        return found

    def fused(self, layer: Any, *arguments: Any) -> Tensor:
        """Compute :func:`fused_layer` with the layer's gathered weights."""
        if self.gathered:
            return fused_layer(layer, *arguments)
        made: Tensor = getattr(layer, FUSED)(*arguments)
        return made

    def gather(self, keep: bool) -> None:
        """Gather the full weights; a collective call for every rank.

        Args:
            keep: whether this rank keeps the full weights, until :meth:`let_go`. The other ranks hold one layer at a
                time.
        """
        self.let_go()
        for module in self._modules:
            module.unshard()
            if not keep:
                module.reshard()
        self.gathered = keep
        for layer in self._layers:
            layer.set_reshard_after_forward(not keep)

    def copy(self, keep: bool) -> None:
        """Gather the full weights into CPU memory, one at a time; a collective call for every rank.

        Frozen weights are gathered only once.

        Args:
            keep: whether this rank keeps the full weights.
        """
        self.let_go()
        self.resting = True
        if self._copies is None or any(parameter.requires_grad for parameter in self.parameters.values()):
            all_of_them = ((name, whole(parameter.detach())) for name, parameter in self.parameters.items())
            self._copies = {name: tensor.cpu() for name, tensor in all_of_them if keep}

    def let_go(self) -> None:
        """Release gathered weights and keep only this rank's shard."""
        self.resting = False
        self._root().reset_iter_state()
        if self.gathered:
            self.gathered = False
            for layer in self._layers:
                layer.set_reshard_after_forward(True)

    def weights(self) -> dict[str, Tensor]:
        """Return the full weights by name. This rank must hold them."""
        assert self.gathered or (self.resting and self._copies), "weights that lie elsewhere are read"
        copies = {} if self.gathered else {id(self.parameters[name]): it for name, it in (self._copies or {}).items()}
        found = {**dict(self._model.named_parameters(remove_duplicate=False)), **dict(self._model.named_buffers())}
        return {
            name: copies.get(id(tensor), tensor).detach()
            for name, tensor in found.items()
            if name not in self._volatile
        }

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Load this rank's shard from full weights. Gathered weights are outdated until the next gather."""
        for name, parameter in self.parameters.items():
            local(parameter).copy_(local(part_of(weights[name], parameter)))

    def _root(self) -> Any:
        assert isinstance(self._pass, FSDPModule)
        return self._pass


def _layers(backbone: Backbone) -> list[Any]:
    """Return the decoder's layers under any attribute name. Each layer is gathered separately."""
    lists = [module for module in backbone.decoder.modules() if isinstance(module, nn.ModuleList)]
    return list(next((found for found in lists if len(found) == backbone.depth), ()))


def shard(backbone: Backbone, mesh: DeviceMesh) -> None:
    """Shard a backbone's weights over a mesh.

    Raises:
        ValueError: the installed torch is too old.
    """
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ValueError(
            f"training.shard needs torch 2.13 or newer, and here is {torch.__version__}; set shard = false"
        )
    assert backbone.shards is None
    assert backbone.masters is None, "masters of parts are parts"
    backbone.shards = Shards(backbone, mesh)
