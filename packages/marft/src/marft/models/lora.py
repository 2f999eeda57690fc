"""Many LoRA adapters on one linear layer, all in the same forward.

The rows of a batch belong to policies; a :class:`Routing` says which. Where a batch's tokens lie policy by policy
(training, scoring, prefill) each stretch is multiplied with its own adapter. Where every row is one token (decoding)
the adapters are stacked: one product with all of them, masked by row, and one product back. Both give what
``peft`` gives for each row alone, and a policy without tokens in the batch gets no gradient at all.

Adapters follow peft: ``y = W x + (alpha / r) · B A x`` with ``A`` [r, in], ``B`` [out, r] (Hu et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from marft.models.devices import sent

PARTIAL = (
    "a layer that policies adapt sees {} tokens where the batch has {}, as an expert's does: which are whose is not "
    "known there; leave it out of lora.targets"
)


class Adapter(nn.Module):
    """One policy's pair of matrices on one layer, float32 whatever the base's dtype."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(base.in_features)  # peft's default: Kaiming uniform with a = √5
        a = (torch.rand(rank, base.in_features, generator=generator) * 2 - 1) * bound
        self.a = nn.Parameter(a.to(base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        self.scale = alpha / rank


class Routing:
    """Which policy each token of the running forward belongs to. One object is shared by all layers of a base."""

    def __init__(self) -> None:
        self.stretches: Sequence[tuple[str | None, int, int]] = ()
        self.whole = False  # whether each adapter is multiplied with the whole batch
        self.rows: Sequence[str | None] | None = None
        self.decoding = False  # whether each token is a row's next one
        self.tokens = 0  # of the running forward

    @contextmanager
    def by_stretch(
        self, stretches: Sequence[tuple[str | None, int, int]], tokens: int, whole: bool = False
    ) -> Iterator[None]:
        """``(policy, start, stop)`` covers of the batch's tokens, row after row; ``None`` is the base alone.

        Args:
            tokens: of the batch, those included that are in no stretch.
            whole: multiply each adapter with the whole batch and keep its stretch of the product, so that no number
                depends on how many tokens of the policy there are.
        """
        self.stretches, self.tokens, self.whole = stretches, tokens, whole
        try:
            yield
        finally:
            self.stretches, self.tokens, self.whole = (), 0, False

    def as_it_is(self) -> AbstractContextManager[None]:
        """The same once more, for a backward pass that computes layers again."""
        return self.by_stretch(self.stretches, self.tokens, self.whole)

    @contextmanager
    def by_row(self, rows: Sequence[str | None]) -> Iterator[None]:
        """One policy name a token. A batch of one policy is a single stretch."""
        if len(set(rows)) == 1:
            self.stretches = [(rows[0], 0, len(rows))]
        else:
            self.rows = rows
        self.tokens, self.decoding = len(rows), True
        try:
            yield
        finally:
            self.stretches, self.rows, self.tokens, self.decoding = (), None, 0, False


class MultiLoraLinear(nn.Module):
    """A frozen linear layer with one adapter a policy."""

    def __init__(self, base: nn.Linear, routing: Routing) -> None:
        super().__init__()
        self.base = base
        self.routing = routing
        self._adapters = nn.ModuleDict()
        self._stack_of: Sequence[str | None] | None = None
        self._stack: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, policy: str, rank: int, alpha: float, generator: torch.Generator) -> None:
        self._adapters[_key(policy)] = Adapter(self.base, rank, alpha, generator)

    def remove(self, policy: str) -> None:
        """Forget a policy's adapter, where it has one here. None of its rows may be computed any more."""
        if _key(policy) in self._adapters:
            del self._adapters[_key(policy)]
        self._stack_of, self._stack = None, None

    def adapter(self, policy: str | None) -> Adapter | None:
        if policy is None or _key(policy) not in self._adapters:
            return None
        found = self._adapters[_key(policy)]
        assert isinstance(found, Adapter)
        return found

    def forward(self, x: Tensor) -> Tensor:  # [1, N, in] → [1, N, out], or rows of a batch [B, T, in] → [B, T, out]
        if x.dim() != 3 or len(x) != 1:
            return self.forward(x.reshape(1, -1, x.shape[-1])).view(*x.shape[:-1], -1)
        if self.routing.tokens not in (0, x.shape[1]):
            raise ValueError(PARTIAL.format(x.shape[1], self.routing.tokens))
        out: Tensor = self.base(x)
        if self.routing.rows is not None:
            return self._add_by_row(x, out, self.routing.rows)
        parts = [self._stretch(x, out, *stretch) for stretch in self.routing.stretches]
        if parts and (end := self.routing.stretches[-1][2]) < out.shape[1]:
            parts.append(out[:, end:])
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0] if parts else out

    def _stretch(self, x: Tensor, out: Tensor, policy: str | None, start: int, stop: int) -> Tensor:
        result = out[:, start:stop]
        adapter = self.adapter(policy)
        if adapter is None:
            return result
        if self.routing.whole:
            low = linear(x.to(adapter.a.dtype), adapter.a)
            return _add_product(out, low, adapter.b, adapter.scale)[:, start:stop]
        return _add_product(result, linear(x[:, start:stop].to(adapter.a.dtype), adapter.a), adapter.b, adapter.scale)

    def _add_by_row(self, x: Tensor, out: Tensor, rows: Sequence[str | None]) -> Tensor:
        stack = self.stacked(rows)
        if stack is None:
            return out
        a, b, mask = stack
        return _add_product(out, linear(x.to(a.dtype), a) * mask, b, 1.0)

    def stacked(self, rows: Sequence[str | None]) -> tuple[Tensor, Tensor, Tensor] | None:
        """The adapters of all rows as one: A [Σr, in], B [out, Σr], and the mask [N, Σr]; None where no row has any.

        Weights must not move while ``rows`` is the same list.
        """
        if self._stack_of is not rows:  # a running batch has the same list until a row comes or goes
            self._stack_of, self._stack = rows, self._stacked(rows, self.base.weight.device)
        return self._stack

    def _stacked(self, rows: Sequence[str | None], device: torch.device) -> tuple[Tensor, Tensor, Tensor] | None:
        present = [(policy, found) for policy in dict.fromkeys(rows) if (found := self.adapter(policy)) is not None]
        if not present:
            return None
        a = torch.cat([adapter.a for _, adapter in present])
        b = torch.cat([adapter.b for _, adapter in present], dim=1)
        return a, b, _scale_mask(rows, present, device)


def _key(policy: str) -> str:
    """A ``ModuleDict`` takes no name that is an attribute of its own, such as ``keys`` or ``train``."""
    return f"of {policy}"


def _add_product(out: Tensor, low: Tensor, b: Tensor, scale: float) -> Tensor:
    """``out + scale · low bᵀ`` for ``out`` [1, N, out], ``low`` [1, N, r]; in the adapters' precision."""
    if out.dtype == b.dtype:
        return torch.addmm(out[0], low[0], b.t(), alpha=scale)[None]
    return out + (linear(low, b) * scale).to(out.dtype)


def _scale_mask(rows: Sequence[str | None], present: list[tuple[str | None, Adapter]], device: torch.device) -> Tensor:
    """[N, Σr]: a policy's scale where a column of the stacked adapters belongs to the row's policy, else 0."""
    mine = np.array([[row == policy for policy, _ in present] for row in rows])  # [N, P]
    scales = np.array([adapter.scale for _, adapter in present], np.float32)
    return sent(np.repeat(mine * scales, [len(adapter.a) for _, adapter in present], axis=1), device)
