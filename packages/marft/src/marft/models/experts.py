"""LoRA adapters on the experts of a mixture, for several policies in the same forward.

transformers stores the weights of all experts of a layer in one parameter: [E, out, in], or [E, in, out] for transposed
experts. An adapter has a pair of matrices for every expert, in the layout of PEFT's ``target_parameters``: ``A``
[E·r, in] and ``B`` [out, r·E].

The router sends each token to K experts. The pairs of a token and an expert are sorted by expert, then by policy. One
grouped product per weight computes the experts, and two more compute the adapters of every policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm, pad

from marft.models.attention import gather_rows
from marft.models.lora import Adapter, AdapterSet, Routing

EXPERT_SETTINGS = ("num_experts", "is_transposed", "has_bias", "has_gate")
ROUTER_CLASSES = ("Router", "TopKGating", "MoEV1Gate")  # ends of class names
RANK_STEP = 8  # stacked adapters are padded to a multiple: grouped products need aligned rows


def is_router(model: nn.Module, name: str) -> bool:
    """Return whether a layer is a router or belongs to one: it selects experts, and its output is no tensor."""
    layers = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
    return any(type(layer).__name__.endswith(ROUTER_CLASSES) for layer in layers)


def find_experts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules with fused experts of a model that has no adapters on experts, by name."""
    for name, module in model.named_modules():
        if all(hasattr(module, setting) for setting in EXPERT_SETTINGS):
            yield name, module


def expert_weights(experts: Any) -> dict[str, nn.Parameter]:
    """Return the weights of experts that adapters support, by name, in the order of the parameters."""
    return {name: weight for name, weight in experts.named_parameters(recurse=False) if weight.dim() == 3}


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Shape of a weight: number of experts, inputs and outputs of each."""

    experts: int
    in_features: int
    out_features: int

    @staticmethod
    def from_weight(weight: Tensor, is_transposed: bool) -> ExpertShape:
        """Return the shape of a fused weight."""
        experts, first, second = weight.shape
        return ExpertShape(experts, *((first, second) if is_transposed else (second, first)))


class ExpertAdapters(AdapterSet):
    """Adapters of all policies for one fused weight."""

    def __init__(self, weight: Tensor, is_transposed: bool) -> None:
        super().__init__()
        self.shape = ExpertShape.from_weight(weight, is_transposed)
        self._device = weight.device

    def add_adapter(self, policy: str, rank: int, alpha: float, generator: torch.Generator) -> None:
        """Add a new adapter for a policy."""
        shape = self.shape
        adapter = Adapter(
            shape.in_features, shape.out_features, rank, alpha, generator, self._device, copies=shape.experts
        )
        self.set_adapter(policy, adapter)

    def stack(self, policies: Sequence[str | None]) -> tuple[Tensor, Tensor] | None:
        """Return the adapters of several policies, A [E·P, in, R] and scaled B [E·P, R, out]; None without adapters.

        R is the largest rank; smaller adapters are padded with zeros.
        """
        adapters = [self.get_adapter(policy) for policy in policies]
        ranks = [adapter.rank for adapter in adapters if adapter is not None]
        if not ranks:
            return None
        rank = -(-max(ranks) // RANK_STEP) * RANK_STEP
        a = torch.stack([self._inputs(adapter, rank) for adapter in adapters], 1).flatten(0, 1)
        b = torch.stack([self._outputs(adapter, rank) for adapter in adapters], 1).flatten(0, 1)
        return a.transpose(1, 2), b

    def _inputs(self, adapter: Adapter | None, rank: int) -> Tensor:  # [E, R, in]
        shape = self.shape
        if adapter is None:
            return torch.zeros(shape.experts, rank, shape.in_features, device=self._device)
        return pad(adapter.a.view(shape.experts, adapter.rank, -1), (0, 0, 0, rank - adapter.rank))

    def _outputs(self, adapter: Adapter | None, rank: int) -> Tensor:  # [E, R, out]
        shape = self.shape
        if adapter is None:
            return torch.zeros(shape.experts, rank, shape.out_features, device=self._device)
        b_ERO = adapter.b.view(-1, adapter.rank, shape.experts).permute(2, 1, 0) * adapter.scale
        return pad(b_ERO.contiguous(), (0, 0, 0, rank - adapter.rank))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertGroups:
    """Pairs of a token and an expert, sorted by expert and then by policy."""

    policies: Sequence[str | None]  # [P]
    order: Tensor  # [S] pair at each sorted position
    inverse: Tensor  # [S] sorted position of each pair
    experts: Tensor  # [S] expert at each sorted position
    ends: Tensor  # [E·P] end of each group of an expert and a policy
    expert_ends: Tensor  # [E]

    @staticmethod
    def from_routing(experts_NK: Tensor, routing: Routing, num_experts: int) -> ExpertGroups:
        """Sort the pairs of a forward."""
        policies, owners = routing.token_owners(experts_NK.device)
        groups = (experts_NK * len(policies) + owners[:, None]).flatten()
        sorted_groups, order = groups.sort(stable=True)
        numbers = torch.arange(num_experts * len(policies), device=groups.device)
        ends = torch.searchsorted(sorted_groups, numbers, right=True).int()
        expert_ends = ends[len(policies) - 1 :: len(policies)].contiguous()
        return ExpertGroups(policies, order, order.argsort(), sorted_groups // len(policies), ends, expert_ends)


class MultiLoraExperts(nn.Module):
    """Frozen experts with adapters for each policy."""

    def __init__(self, base: Any, routing: Routing) -> None:
        super().__init__()
        self.base = base
        self.routing = routing
        self.adapters = nn.ModuleDict()  # ExpertAdapters by name of the weight

    def adapters_of(self, weight: str) -> ExpertAdapters:
        """Return the adapters for a weight, created on first use."""
        if weight not in self.adapters:
            self.adapters[weight] = ExpertAdapters(getattr(self.base, weight), self.base.is_transposed)
        adapters = self.adapters[weight]
        assert isinstance(adapters, ExpertAdapters)
        return adapters

    def forward(self, x_ND: Tensor, experts_NK: Tensor, weights_NK: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts, [N, D].

        Args:
            x_ND: hidden states.
            experts_NK: experts of each token.
            weights_NK: weights of the experts.
        """
        policies = self.routing.token_owners(x_ND.device)[0]
        if not any(self.adapters_of(name).get_adapter(policy) for name in self.adapters for policy in policies):
            out: Tensor = self.base(x_ND, experts_NK, weights_NK)
            return out
        base, dtype = self.base, next(iter(expert_weights(self.base).values())).dtype
        groups = ExpertGroups.from_routing(experts_NK, self.routing, base.num_experts)
        if x_ND.dtype != dtype:  # a float32 residual stream: the weights enter the sum in the experts' precision
            weights_NK = weights_NK.to(dtype)
        pairs_SD = x_ND[:, None].expand(-1, experts_NK.shape[1], -1).flatten(0, 1)
        hidden = self._project("gate_up_proj" if base.has_gate else "up_proj", _sort(pairs_SD, groups), groups)
        hidden = base._apply_gate(hidden) if base.has_gate else base.act_fn(hidden)
        result = self._project("down_proj", hidden, groups)
        if getattr(base, "has_post_expert_norm", False):
            result = base.post_expert_norm(result)
        result = gather_rows(result, groups.inverse, groups.order) * weights_NK.reshape(-1, 1)
        return result.view(*experts_NK.shape, -1).sum(1).to(dtype)

    def _project(self, name: str, x_SI: Tensor, groups: ExpertGroups) -> Tensor:  # [S, out]
        weight: Tensor = getattr(self.base, name)
        weight_EIO = weight if self.base.is_transposed else weight.transpose(-2, -1)
        out = grouped_mm(x_SI.to(weight.dtype), weight_EIO, offs=groups.expert_ends)
        if self.base.has_bias:
            out = out + getattr(self.base, f"{name}_bias")[groups.experts]
        stack = self.adapters_of(name).stack(groups.policies) if name in self.adapters else None
        if stack is None:
            return out
        a, b = stack
        low = grouped_mm(x_SI.to(a.dtype), a, offs=groups.ends)
        return out + grouped_mm(low, b, offs=groups.ends).to(out.dtype)


def _sort(pairs_SD: Tensor, groups: ExpertGroups) -> Tensor:
    return gather_rows(pairs_SD, groups.order, groups.inverse)
