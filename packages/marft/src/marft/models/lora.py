"""Several LoRA adapters on a linear layer, applied in the same forward.

A :class:`Routing` assigns the rows of a batch to policies. In training, scoring and prefill, the tokens of a policy are
contiguous, and each span is multiplied with its own adapter. In decoding, every row has one token. The adapters are
then stacked: one product with all of them, a mask per row, and one product back. Both methods give the result of
``peft`` for each row alone. A policy without tokens in the batch gets no gradient at all.

Adapters follow PEFT: ``y = W x + (alpha / r) · B A x`` with ``A`` [r, in], ``B`` [out, r] (Hu et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from marft.common.errors import UserError
from marft.models.devices import to_device

PARTIAL_BATCH_ERROR = (
    "a layer that policies adapt sees {} tokens where the batch has {}, as an expert's does: which are whose is not "
    "known there; leave it out of lora.target_modules"
)


class Adapter(nn.Module):
    """LoRA adapter for a policy and layer: a pair of float32 matrices, independent of the base dtype.

    Args:
        copies: number of experts, each with its own matrices, or 1: A is [copies · rank, in], B [out, rank · copies].
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        alpha: float,
        generator: torch.Generator,
        device: torch.device,
        copies: int = 1,
    ) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(in_features)  # PEFT's default: Kaiming uniform with a = √5
        a = (torch.rand(copies * rank, in_features, generator=generator) * 2 - 1) * bound
        self.a = nn.Parameter(a.to(device))
        self.b = nn.Parameter(torch.zeros(out_features, rank * copies, device=device))
        self.rank, self.copies, self.scale = rank, copies, alpha / rank


class AdapterSet(nn.Module):
    """Adapters of one weight, by policy."""

    def __init__(self) -> None:
        super().__init__()
        self._adapters = nn.ModuleDict()

    def set_adapter(self, policy: str, adapter: Adapter) -> None:
        """Set a policy's adapter."""
        self._adapters[_adapter_key(policy)] = adapter

    def remove(self, policy: str) -> None:
        """Remove a policy's adapter, if any. The policy may have no running rows."""
        if _adapter_key(policy) in self._adapters:
            del self._adapters[_adapter_key(policy)]

    def get_adapter(self, policy: str | None) -> Adapter | None:
        """Return a policy's adapter, or None."""
        if policy is None or _adapter_key(policy) not in self._adapters:
            return None
        adapter = self._adapters[_adapter_key(policy)]
        assert isinstance(adapter, Adapter)
        return adapter

    def adapters(self) -> dict[str, Adapter]:
        """Return the adapters by policy, in the order of their creation."""
        return {
            key.removeprefix(_adapter_key("")): adapter
            for key, adapter in self._adapters.items()
            if isinstance(adapter, Adapter)
        }


class StackedRows(tuple[None, ...]):
    """Rows of a captured forward: each layer has the adapters of all policies stacked, and a mask per row.

    Attributes:
        stacks: A [Σr, in], B [out, Σr] and mask [N, Σr], by id of the layer.
    """

    stacks: Mapping[int, tuple[Tensor, Tensor, Tensor]]


class Routing:
    """Assignment of tokens to policies in the current forward, shared by every layer of a base model."""

    def __init__(self) -> None:
        self.spans: Sequence[tuple[str | None, int, int]] = ()
        self.full_batch = False  # whether each adapter is multiplied with the whole batch
        self.row_policies: Sequence[str | None] | None = None
        self.decoding = False  # whether each token is the next token of its row
        self.num_tokens = 0  # number of tokens in the current forward
        self.adapter_changes = 0  # number of adapters added to linear layers or removed from them so far
        self._owners: tuple[list[str | None], Tensor] | None = None
        self.experts: Tensor | None = None  # [N, L, K] replayed experts of the current forward
        self.recorded: list[Tensor] | None = None  # recorded experts of the current forward, [N, K] per layer

    @contextmanager
    def by_span(
        self,
        spans: Sequence[tuple[str | None, int, int]],
        tokens: int,
        full_batch: bool = False,
        experts: Tensor | None = None,
    ) -> Iterator[None]:
        """Set the policy spans ``(policy, start, stop)`` over the batch's tokens, row after row; ``None``: base model.

        Args:
            tokens: tokens of the batch, including tokens outside the spans.
            full_batch: whether to multiply each adapter with the whole batch and keep only its span of the product.
                Results then do not depend on the number of tokens of the policy.
            experts: replayed experts, [N, L, K].
        """
        self.spans, self.num_tokens, self.full_batch, self._owners = spans, tokens, full_batch, None
        self.experts = experts
        try:
            yield
        finally:
            self.spans, self.num_tokens, self.full_batch, self._owners = (), 0, False, None
            self.experts = None

    def repeat(self) -> AbstractContextManager[None]:
        """Repeat the current routing, for a backward pass that recomputes layers."""
        return self.by_span(self.spans, self.num_tokens, self.full_batch, self.experts)

    @contextmanager
    def by_row(self, rows: Sequence[str | None]) -> Iterator[None]:
        """Set a policy for each token. A batch with a single policy becomes one span."""
        if not isinstance(rows, StackedRows) and len(set(rows)) == 1:
            self.spans = [(rows[0], 0, len(rows))]
        else:
            self.row_policies = rows
        self.num_tokens, self.decoding, self._owners = len(rows), True, None
        try:
            yield
        finally:
            self.spans, self.row_policies, self.num_tokens, self.decoding, self._owners = (), None, 0, False, None

    def token_owners(self, device: torch.device) -> tuple[list[str | None], Tensor]:
        """Return the policies of the current forward, and each token's index into them, [N]."""
        if self._owners is None:
            spans = [(policy, stop - start) for policy, start, stop in self.spans]
            if self.row_policies is not None:
                spans = [(policy, 1) for policy in self.row_policies]
            rest = self.num_tokens - sum(size for _, size in spans)
            spans += [(None, rest)] if rest else []
            policies = list(dict.fromkeys(policy for policy, _ in spans))
            numbers = np.array([policies.index(policy) for policy, _ in spans], np.int64)
            self._owners = policies, to_device(np.repeat(numbers, [size for _, size in spans]), device)
        return self._owners


class MultiLoraLinear(AdapterSet):
    """Frozen linear layer with an adapter for each policy."""

    def __init__(self, base: nn.Linear, routing: Routing) -> None:
        super().__init__()
        self.base = base
        self.routing = routing
        self._stacked_rows: Sequence[str | None] | None = None
        self._stack: tuple[Tensor, Tensor, Tensor] | None = None

    def add_adapter(self, policy: str, rank: int, alpha: float, generator: torch.Generator) -> None:
        """Add a new adapter for a policy."""
        base = self.base
        device = next(chain(base.buffers(), base.parameters())).device  # a quantized layer computes its weight
        adapter = Adapter(base.in_features, base.out_features, rank, alpha, generator, device)
        self.set_adapter(policy, adapter)
        self.routing.adapter_changes += 1

    def remove(self, policy: str) -> None:
        """Remove a policy's adapter, if any. The policy may have no running rows."""
        super().remove(policy)
        self.routing.adapter_changes += 1
        self._stacked_rows, self._stack = None, None

    def forward(self, x: Tensor) -> Tensor:  # [1, N, in] → [1, N, out], or rows of a batch [B, T, in] → [B, T, out]
        """Apply the layer with the routed adapters.

        Raises:
            UserError: the layer gets only a part of the batch's tokens, as an expert does.
        """
        if x.dim() != 3 or len(x) != 1:
            return self.forward(x.reshape(1, -1, x.shape[-1])).view(*x.shape[:-1], -1)
        if self.routing.num_tokens not in (0, x.shape[1]):
            raise UserError(PARTIAL_BATCH_ERROR.format(x.shape[1], self.routing.num_tokens))
        out: Tensor = self.base(x)
        if self.routing.row_policies is not None:
            return self._add_by_row(x, out, self.routing.row_policies)
        parts = [self._apply_span(x, out, *span) for span in self.routing.spans]
        if parts and (end := self.routing.spans[-1][2]) < out.shape[1]:
            parts.append(out[:, end:])
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0] if parts else out

    def _apply_span(self, x: Tensor, out: Tensor, policy: str | None, start: int, stop: int) -> Tensor:
        result = out[:, start:stop]
        adapter = self.get_adapter(policy)
        if adapter is None:
            return result
        if self.routing.full_batch:
            low = linear(x.to(adapter.a.dtype), adapter.a)
            return _add_product(out, low, adapter.b, adapter.scale)[:, start:stop]
        return _add_product(result, linear(x[:, start:stop].to(adapter.a.dtype), adapter.a), adapter.b, adapter.scale)

    def _add_by_row(self, x: Tensor, out: Tensor, rows: Sequence[str | None]) -> Tensor:
        stack = self.stack_adapters(rows)
        if stack is None:
            return out
        a, b, mask = stack
        return _add_product(out, linear(x.to(a.dtype), a) * mask, b, 1.0)

    def stack_adapters(self, rows: Sequence[str | None]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the stacked adapters for the rows: A [Σr, in], B [out, Σr], mask [N, Σr]; None without adapters.

        The result is cached for the same ``rows`` list, so weights must not change meanwhile.
        """
        if isinstance(rows, StackedRows):
            return rows.stacks.get(id(self))
        if self._stacked_rows is not rows:  # a running batch keeps the same list until a row joins or leaves
            self._stacked_rows, self._stack = rows, self._build_stack(rows)
        return self._stack

    def _build_stack(self, rows: Sequence[str | None]) -> tuple[Tensor, Tensor, Tensor] | None:
        adapters = {policy: self.get_adapter(policy) for policy in dict.fromkeys(rows)}
        present = [(policy, adapter) for policy, adapter in adapters.items() if adapter is not None]
        if not present:
            return None
        a = torch.cat([adapter.a for _, adapter in present])
        b = torch.cat([adapter.b for _, adapter in present], dim=1)
        return a, b, scale_mask(rows, present, a.device)


def _adapter_key(policy: str) -> str:
    """Return the adapter's key. A ``ModuleDict`` rejects attribute names such as ``keys`` or ``train``."""
    return f"of {policy}"


def _add_product(out: Tensor, low: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return ``out + scale · low bᵀ``, [1, N, out], for ``low`` [1, N, r]; computed in the adapters' precision."""
    if out.dtype == b.dtype:
        return torch.addmm(out[0], low[0], b.t(), alpha=scale)[None]
    product = linear(low, b)
    return out + (product if scale == 1.0 else product * scale).to(out.dtype)


def scale_mask(rows: Sequence[str | None], present: list[tuple[str | None, Adapter]], device: torch.device) -> Tensor:
    """Return the mask [N, Σr]: a policy's scale in its columns for rows with the same policy, else 0."""
    matches = np.array([[row == policy for policy, _ in present] for row in rows])  # [N, P]
    scales = np.array([adapter.scale for _, adapter in present], np.float32)
    return to_device(np.repeat(matches * scales, [len(adapter.a) for _, adapter in present], axis=1), device)
