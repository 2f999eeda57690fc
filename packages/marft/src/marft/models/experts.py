"""LoRA adapters on the experts of a mixture, for several policies in the same forward.

transformers stores the weights of all experts of a layer in one parameter: [E, out, in], or [E, in, out] for transposed
experts. An adapter has a pair of matrices for every expert, in the layout of PEFT's ``target_parameters``: ``A``
[E·r, in] and ``B`` [out, r·E].

The router sends each token to K experts. The pairs of a token and an expert are sorted by expert, then by policy. One
grouped product per weight computes the experts, and two more compute the adapters of every policy. These two need the
adapters stacked in one tensor: decoding keeps the stack, and training builds it again for the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm, pad
from torch.utils.checkpoint import checkpoint

from marft.models.attention import gather_rows
from marft.models.devices import to_device
from marft.models.lora import Adapter, AdapterSet, Routing

Stack = tuple[Tensor, Tensor]  # A [E·P, in, R] and scaled B [E·P, R, out] of P policies
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
    """Adapters of all policies for one fused weight.

    Args:
        base: module with the weight.
        weight: name of the weight.
    """

    def __init__(self, base: Any, weight: str) -> None:
        super().__init__()
        self._read_weight = partial(getattr, base, weight)  # sharding replaces the weight
        self.shape = ExpertShape.from_weight(self._read_weight(), base.is_transposed)
        self._kept: tuple[list[Adapter], object, Stack] | None = None  # adapters, their versions, and their stack

    def add_adapter(self, policy: str, rank: int, alpha: float, generator: torch.Generator) -> None:
        """Add a new adapter for a policy."""
        shape, device = self.shape, self._read_weight().device
        adapter = Adapter(shape.in_features, shape.out_features, rank, alpha, generator, device, copies=shape.experts)
        self.set_adapter(policy, adapter)

    def stack(self, policies: Sequence[str], keep: bool) -> Stack:
        """Return the adapters of several policies, of which at least one has an adapter.

        R is the largest rank; smaller adapters are padded with zeros.

        Args:
            policies: policies of a forward.
            keep: whether to keep the stack for the next call, until an adapter changes.
        """
        adapters = [self.get_adapter(policy) for policy in policies]
        present = [adapter for adapter in adapters if adapter is not None]
        if not keep:
            self._kept = None
            return self._build_stack(adapters, present)
        halves = [half for adapter in present for half in (adapter.a, adapter.b)]
        versions = (*policies, *[(id(half), half._version, half.data_ptr()) for half in halves])
        kept = self._kept
        if kept is None or kept[1] != versions:
            kept = self._kept = present, versions, self._build_stack(adapters, present)
        return kept[2]

    def _build_stack(self, adapters: Sequence[Adapter | None], present: Sequence[Adapter]) -> Stack:
        rank = -(-max(adapter.rank for adapter in present) // RANK_STEP) * RANK_STEP
        device = present[0].a.device
        a = torch.stack([self._inputs(adapter, rank, device) for adapter in adapters], 1).flatten(0, 1)
        b = torch.stack([self._outputs(adapter, rank, device) for adapter in adapters], 1).flatten(0, 1)
        return a.transpose(1, 2), b

    def _inputs(self, adapter: Adapter | None, rank: int, device: torch.device) -> Tensor:  # [E, R, in]
        shape = self.shape
        if adapter is None:
            return torch.zeros(shape.experts, rank, shape.in_features, device=device)
        return pad(adapter.a.view(shape.experts, adapter.rank, -1), (0, 0, 0, rank - adapter.rank))

    def _outputs(self, adapter: Adapter | None, rank: int, device: torch.device) -> Tensor:  # [E, R, out]
        shape = self.shape
        if adapter is None:
            return torch.zeros(shape.experts, rank, shape.out_features, device=device)
        b_ERO = adapter.b.view(-1, adapter.rank, shape.experts).permute(2, 1, 0) * adapter.scale
        return pad(b_ERO, (0, 0, 0, rank - adapter.rank))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertGroups:
    """Pairs of a token and an expert, sorted by expert and then by policy.

    The pairs of tokens without an adapter are counted to the first policy, and their change is set to 0.
    """

    policies: Sequence[str]  # [P] policies with adapters
    order: Tensor  # [S] pair at each sorted position
    inverse: Tensor  # [S] sorted position of each pair
    experts: Tensor  # [S] expert at each sorted position
    ends: Tensor  # [E·P] end of each group of an expert and a policy
    expert_ends: Tensor  # [E]
    is_base: Tensor | None  # [S] whether the token has no adapter; None if every token has one

    @staticmethod
    def from_routing(
        experts_NK: Tensor, routing: Routing, adapted: Sequence[str | None], num_experts: int
    ) -> ExpertGroups:
        """Sort the pairs of a forward.

        Args:
            adapted: policies of the forward with adapters.
        """
        known, owners = routing.token_owners(experts_NK.device)
        policies = [policy for policy in known if policy is not None and policy in adapted]
        is_base = None
        if len(policies) < len(known):
            new_numbers = np.array([policies.index(policy) if policy in policies else -1 for policy in known])
            owners = to_device(new_numbers, owners.device)[owners]
            is_base, owners = owners < 0, owners.clamp_min(0)
        groups = (experts_NK * len(policies) + owners[:, None]).flatten()
        sorted_groups, order = groups.sort(stable=True)
        numbers = torch.arange(num_experts * len(policies), device=groups.device)
        ends = torch.searchsorted(sorted_groups, numbers, right=True).int()
        expert_ends = ends[len(policies) - 1 :: len(policies)].contiguous()
        if is_base is not None:
            is_base = is_base[order // experts_NK.shape[1]]
        experts = sorted_groups // len(policies)
        return ExpertGroups(policies, order, order.argsort(), experts, ends, expert_ends, is_base)


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
            self.adapters[weight] = ExpertAdapters(self.base, weight)
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
        adapted = [policy for policy in self.routing.token_owners(x_ND.device)[0] if self._adapted_weights([policy])]
        if not adapted:
            out: Tensor = self.base(x_ND, experts_NK, weights_NK)
            return out
        base, dtype = self.base, next(iter(expert_weights(self.base).values())).dtype
        groups = ExpertGroups.from_routing(experts_NK, self.routing, adapted, base.num_experts)
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
        if name not in self._adapted_weights(groups.policies):
            return out
        if torch.is_grad_enabled():  # recomputed in the backward pass, which would else hold a copy of the adapters
            change: Tensor = checkpoint(
                self._apply_adapters, name, x_SI, groups, use_reentrant=False, preserve_rng_state=False
            )
        else:
            change = self._apply_adapters(name, x_SI, groups)
        return out + change.to(out.dtype)

    def _apply_adapters(self, name: str, x_SI: Tensor, groups: ExpertGroups) -> Tensor:  # [S, out]
        keep = self.routing.decoding and not torch.is_grad_enabled()
        a, b = self.adapters_of(name).stack(groups.policies, keep)
        low = grouped_mm(x_SI.to(a.dtype), a, offs=groups.ends)
        if groups.is_base is not None:
            low = low.masked_fill(groups.is_base[:, None], 0)
        return grouped_mm(low, b, offs=groups.ends)

    def _adapted_weights(self, policies: Sequence[str | None]) -> list[str]:
        """Return the weights that some policy adapts."""
        return [name for name in self.adapters if any(self.adapters_of(name).get_adapter(one) for one in policies)]


def _sort(pairs_SD: Tensor, groups: ExpertGroups) -> Tensor:
    return gather_rows(pairs_SD, groups.order, groups.inverse)
