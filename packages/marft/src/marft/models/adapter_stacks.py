"""Adapters of all policies stacked for each layer, in tensors with fixed addresses, for captured forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marft.models.backbone import Backbone
from marft.models.lora import Adapter, MultiLoraLinear, StackedRows, scale_mask


@dataclass(frozen=True, slots=True, eq=False)
class _LayerStack:
    layer: MultiLoraLinear
    adapters: Mapping[str, Adapter]  # by policy
    a: Tensor  # [Σr, in]
    b: Tensor  # [out, Σr]

    @property
    def ranks(self) -> tuple[tuple[str, int, float], ...]:
        """Policies with their ranks and scales; layers with equal ones share masks."""
        return tuple((policy, len(adapter.a), adapter.scale) for policy, adapter in self.adapters.items())


class AdapterStacks:
    """Stacked adapters of a backbone's layers.

    :meth:`refresh` copies the adapters' values, so a captured forward reads the new weights. Once an adapter has been
    added, removed or replaced, the stacks are no longer current.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._changes = backbone.routing.adapter_changes
        found = [(layer, layer.adapters()) for layer in backbone.layers.values()]
        self._stacks = [
            _LayerStack(layer, adapters, *_stack_factors(adapters)) for layer, adapters in found if adapters
        ]
        self._factors = [
            factor for stack in self._stacks for one in stack.adapters.values() for factor in (one.a, one.b)
        ]
        self._versions = self._current_versions()

    def is_current(self, backbone: Backbone) -> bool:
        """Return whether the backbone still has the same adapters."""
        return backbone.routing.adapter_changes == self._changes

    def refresh(self, changed_only: bool = False) -> None:
        """Copy the adapters' values into the stacks.

        Args:
            changed_only: copy nothing if no adapter has changed in place since the last copy.
        """
        versions = self._current_versions()
        if changed_only and versions == self._versions:
            return
        for stack in self._stacks:
            for target, source in zip((stack.a, stack.b), _stack_factors(stack.adapters), strict=True):
                target.copy_(source)
        self._versions = versions

    def new_masks(self, rows: int, device: torch.device) -> AdapterMasks:
        """Return masks for a number of rows, all of the base model."""
        return AdapterMasks(self._stacks, rows, device)

    def _current_versions(self) -> list[int]:
        return [factor._version for factor in self._factors]


class AdapterMasks:
    """Masks that select each row's adapter from the stacks; their addresses are fixed."""

    def __init__(self, stacks: Sequence[_LayerStack], rows: int, device: torch.device) -> None:
        self._ranks = {stack.ranks: stack.adapters for stack in stacks}
        self._masks = {
            ranks: torch.zeros(rows, sum(rank for _, rank, _ in ranks), device=device) for ranks in self._ranks
        }
        self.rows = StackedRows([None] * rows)
        self.rows.stacks = {id(stack.layer): (stack.a, stack.b, self._masks[stack.ranks]) for stack in stacks}

    def set_rows(self, policies: Sequence[str | None]) -> None:
        """Set the policy of each row; further rows belong to the base model."""
        padded = [*policies, *[None] * (len(self.rows) - len(policies))]
        for ranks, mask in self._masks.items():
            present: list[tuple[str | None, Adapter]] = list(self._ranks[ranks].items())
            mask.copy_(scale_mask(padded, present, mask.device))


def _stack_factors(adapters: Mapping[str, Adapter]) -> tuple[Tensor, Tensor]:
    """Return A [Σr, in] and B [out, Σr] of the adapters."""
    a = torch.cat([adapter.a.detach() for adapter in adapters.values()])
    return a, torch.cat([adapter.b.detach() for adapter in adapters.values()], dim=1)
