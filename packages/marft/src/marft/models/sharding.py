"""Backbone with weights sharded over several ranks (FSDP2: ``torch.distributed.fsdp.fully_shard``).

During training, each rank holds a shard of every weight. A layer is gathered when it is computed, in the forward and
again in the backward. Gradients of trained weights are summed when they are scattered. Embeddings, the last norm and
the head are gathered for a whole pass, because the head is read after the pass. Adapters are not sharded. The fused
decoder is registered as a forward method of each layer, so that FSDP gathers the layer for it. Between updates, one
rank may hold the full weights for sampling and saving, or, only for saving, in CPU memory.

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

from marft.common.errors import UserError
from marft.models.dtensors import full_tensor, local_shard, shard_like
from marft.models.fused_decoder import fused_layer

if TYPE_CHECKING:
    from marft.models.backbone import Backbone

FUSED_METHOD = "fused"  # name of the layer method that computes the layer without its modules


class _PassModule(nn.Module):
    """Wrapper around a whole pass, for weights gathered at its start.

    It is not a part of the model, so the model's class stays unchanged.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        output = work()
        return output.clone() if output._is_view() else output  # a view would break FSDP's hooks


class Shards:
    """Shards of a backbone's weights: this rank keeps its shard and releases the rest. Every rank creates it together.

    Weights in CPU memory move to the device layer by layer, and only this rank's shard stays there.

    Args:
        mesh: one-dimensional mesh of the ranks.
    """

    def __init__(self, backbone: Backbone, mesh: DeviceMesh) -> None:
        self.gathered = False  # whether this rank holds the full weights
        # whether the full weights are only in CPU memory, so that no forward can run until the next update
        self.offloaded = False
        self._cpu_weights: dict[str, Tensor] | None = None  # full weights in CPU memory; {} if another rank has them
        self._model = backbone.model
        self._unsaved_buffers = {name for name, _ in self._model.named_buffers()} - set(self._model.state_dict())
        adapters = {
            parameter
            for layer in (*backbone.layers.values(), *backbone.experts.values())
            for name, parameter in layer.named_parameters()
            if not name.startswith("base.")
        }
        self._pass = _PassModule(backbone.model)
        layers = list[FSDPModule]()
        in_float32 = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # gradients are reduced in float32
        for layer in _decoder_layers(backbone):
            layers.append(fully_shard(layer, mesh=mesh, ignored_params=adapters, mp_policy=in_float32))
            if backbone.fused:
                setattr(layer, FUSED_METHOD, MethodType(fused_layer, layer))
                register_fsdp_forward_method(layer, FUSED_METHOD)
        fully_shard(self._pass, mesh=mesh, ignored_params=adapters, reshard_after_forward=False, mp_policy=in_float32)
        for adapter in adapters:
            adapter.data = adapter.data.to(backbone.device)  # same device as the shards
        self._layers: list[FSDPModule] = layers
        self._modules = [self._root(), *self._layers]
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)  # gradients are sums: their weights already include all ranks
            module.set_force_sum_reduction_for_comms(True)  # gloo does not support a factor in its sum
        self._root().set_reduce_scatter_unused_params(True)  # for the head on an idle rank
        self.parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self._model.named_parameters() if parameter not in adapters
        }
        with torch.no_grad():
            self._pass(lambda: torch.zeros(()))  # a first pass determines the root module

    def run_pass(self, work: Callable[[], Tensor]) -> Tensor:
        """Run a pass: ``work`` computes the last hidden states, [N, D]."""
        if self.gathered:
            return work()
        assert not self.offloaded, "one rank passes through what lies in parts"
        self.release_weights()  # weights gathered by the previous pass may be outdated
        hidden: Tensor = self._pass(work)
        return hidden

    def run_fused_layer(self, layer: nn.Module, *arguments: Any) -> Tensor:
        """Compute :func:`fused_layer` with the layer's gathered weights."""
        if self.gathered:
            return fused_layer(layer, *arguments)
        output: Tensor = getattr(layer, FUSED_METHOD)(*arguments)
        return output

    def gather_weights(self, keep: bool) -> None:
        """Gather the full weights; a collective call for every rank.

        Args:
            keep: whether this rank keeps the full weights, until :meth:`release_weights`. The other ranks hold one
                layer at a time.
        """
        self.release_weights()
        for module in self._modules:
            module.unshard()
            if not keep:
                module.reshard()
        self.gathered = keep
        for layer in self._layers:
            layer.set_reshard_after_forward(not keep)

    def gather_to_cpu(self, keep: bool) -> None:
        """Gather the full weights into CPU memory, one at a time; a collective call for every rank.

        Frozen weights are gathered only once.

        Args:
            keep: whether this rank keeps the full weights.
        """
        self.release_weights()
        self.offloaded = True
        if self._cpu_weights is None or any(parameter.requires_grad for parameter in self.parameters.values()):
            full_weights = ((name, full_tensor(parameter.detach())) for name, parameter in self.parameters.items())
            self._cpu_weights = {name: tensor.cpu() for name, tensor in full_weights if keep}

    def release_weights(self) -> None:
        """Release gathered weights and keep only this rank's shard."""
        self.offloaded = False
        self._root().reset_iter_state()
        if self.gathered:
            self.gathered = False
            for layer in self._layers:
                layer.set_reshard_after_forward(True)

    def weights(self) -> dict[str, Tensor]:
        """Return the full weights by name. This rank must hold them."""
        assert self.gathered or (self.offloaded and self._cpu_weights), "weights that lie elsewhere are read"
        copies = (
            {} if self.gathered else {id(self.parameters[name]): it for name, it in (self._cpu_weights or {}).items()}
        )
        tensors = {**dict(self._model.named_parameters(remove_duplicate=False)), **dict(self._model.named_buffers())}
        return {
            name: copies.get(id(tensor), tensor).detach()
            for name, tensor in tensors.items()
            if name not in self._unsaved_buffers
        }

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load this rank's shard from full weights. Gathered weights are outdated until the next gather."""
        for name, parameter in self.parameters.items():
            local_shard(parameter).copy_(local_shard(shard_like(weights[name], parameter)))

    def _root(self) -> FSDPModule:
        assert isinstance(self._pass, FSDPModule)
        return self._pass


def _decoder_layers(backbone: Backbone) -> list[nn.Module]:
    """Return the decoder's layers under any attribute name. Each layer is gathered separately."""
    lists = [module for module in backbone.decoder.modules() if isinstance(module, nn.ModuleList)]
    return list(next((module_list for module_list in lists if len(module_list) == backbone.num_layers), ()))


def shard_backbone(backbone: Backbone, mesh: DeviceMesh) -> None:
    """Shard a backbone's weights over a mesh.

    Raises:
        UserError: the installed torch is too old.
    """
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise UserError(f"training.shard needs torch 2.13 or newer, and here is {torch.__version__}; set shard = false")
    assert backbone.shards is None
    assert backbone.master_weights is None, "masters of parts are parts"
    backbone.shards = Shards(backbone, mesh)
