"""A backbone whose weights lie in parts on several ranks (FSDP2: ``torch.distributed.fsdp.fully_shard``).

While ranks learn, each holds a part of every weight; a layer is gathered as it is computed, in the forward pass and
again in the backward pass, and gradients of trained weights are summed as they are taken apart. Embeddings, the last
norm and the head are gathered for a whole pass: the head is read after it. Adapters are whole everywhere. Between
updates one rank may hold all of it gathered, to sample from and to save; or, to save alone, in the host's memory.

All ranks pass through a backbone equally often, in the same order: each pass is made of collectives.
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

FUSED = "fused"  # the method of a layer that computes it without its modules


class _Pass(nn.Module):
    """A whole pass: what is gathered for it is gathered as it begins. It is no part of the model, whose class stays."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        made = work()
        return made.clone() if made._is_view() else made  # what hooks are put on must not be written through a view


class Shards:
    """The parts of a backbone's weights: this rank's are kept and the rest let go of. All ranks make it together.

    Weights that lie in the host's memory come to the device layer by layer, and of each this rank's part stays there.

    Args:
        mesh: the ranks, in one dimension.
    """

    def __init__(self, backbone: Backbone, mesh: DeviceMesh) -> None:
        self.gathered = False  # whether this rank holds all of it
        self.resting = False  # whether no rank does, and nothing passes through until an update
        self._copies: dict[str, Tensor] | None = None  # all of it in the host's memory, or {} where another rank has it
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
        in_float32 = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # gradients, while they are summed
        for layer in layers:
            fully_shard(layer, mesh=mesh, ignored_params=adapters, mp_policy=in_float32)
            if backbone.fused:
                setattr(layer, FUSED, MethodType(fused_layer, layer))
                register_fsdp_forward_method(layer, FUSED)
        fully_shard(self._pass, mesh=mesh, ignored_params=adapters, reshard_after_forward=False, mp_policy=in_float32)
        for adapter in adapters:
            adapter.data = adapter.data.to(backbone.device)  # where the parts are
        self._modules: list[Any] = [self._pass, *layers]
        self._layers: list[Any] = layers
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)  # gradients are sums: their weights know of all ranks
            module.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing while it sums
        self._root().set_reduce_scatter_unused_params(True)  # an idle rank's head
        self.parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self._model.named_parameters() if parameter not in adapters
        }
        with torch.no_grad():
            self._pass(lambda: torch.zeros(()))  # a first pass settles which module is the outermost

    def through(self, work: Callable[[], Tensor]) -> Tensor:
        """Make a pass: ``work`` computes the last hidden states [N, D]."""
        if self.gathered:
            return work()
        assert not self.resting, "one rank passes through what lies in parts"
        self.let_go()  # of what the last pass has gathered: weights may have moved since
        found: Tensor = self._pass(work)
        return found

    def fused(self, layer: Any, *arguments: Any) -> Tensor:
        """As :func:`fused_layer`, with the layer gathered."""
        if self.gathered:
            return fused_layer(layer, *arguments)
        made: Tensor = getattr(layer, FUSED)(*arguments)
        return made

    def gather(self, keep: bool) -> None:
        """Bring all weights together; the ranks make this call together.

        Args:
            keep: this rank keeps them, until :meth:`let_go`. The others have one layer at a time.
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
        """Bring all weights together in the host's memory, one after the other; the ranks make this call together. What
        does not learn is brought once.

        Args:
            keep: this rank keeps them.
        """
        self.let_go()
        self.resting = True
        if self._copies is None or any(parameter.requires_grad for parameter in self.parameters.values()):
            all_of_them = ((name, whole(parameter.detach())) for name, parameter in self.parameters.items())
            self._copies = {name: tensor.cpu() for name, tensor in all_of_them if keep}

    def let_go(self) -> None:
        """Hold this rank's part alone."""
        self.resting = False
        self._root().reset_iter_state()
        if self.gathered:
            self.gathered = False
            for layer in self._layers:
                layer.set_reshard_after_forward(True)

    def weights(self) -> dict[str, Tensor]:
        """All weights by their names, where this rank holds them."""
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
        """Write this rank's part of whole weights. What is gathered is not of them until it is gathered again."""
        for name, parameter in self.parameters.items():
            local(parameter).copy_(local(part_of(weights[name], parameter)))

    def _root(self) -> Any:
        assert isinstance(self._pass, FSDPModule)
        return self._pass


def _layers(backbone: Backbone) -> list[Any]:
    """What is gathered together: a decoder's layers, whatever it calls them."""
    lists = [module for module in backbone.decoder.modules() if isinstance(module, nn.ModuleList)]
    return list(next((found for found in lists if len(found) == backbone.depth), ()))


def shard(backbone: Backbone, mesh: DeviceMesh) -> None:
    """Have a backbone's weights lie in parts from here on.

    Raises:
        ValueError: this torch cannot.
    """
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ValueError(
            f"training.shard needs torch 2.13 or newer, and here is {torch.__version__}; set shard = false"
        )
    assert backbone.shards is None
    assert backbone.masters is None, "masters of parts are parts"
    backbone.shards = Shards(backbone, mesh)
