"""Attention over rows with shared prefixes: each query attends to its row's keys at their places in the batch.

A query's keys are in its own tree node and in earlier nodes of its row. The softmax combines the partial results
through the logarithms of their sums: ``o = Σ_i exp(l_i − l) o_i``, ``l = log Σ_i exp(l_i)``. In the backward, ``l``
alone gives the weights of every place (Dao et al. 2022, "FlashAttention"). Scores are computed for a block of queries
at a time, and recomputed for the gradient. Memory therefore does not grow with the square of the row length. If there
are few keys, each node gets copies of its visible keys instead (:mod:`marft.models.run_groups`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from marft.models.cache import KVCache
from marft.models.devices import sent
from marft.models.forest import Forest, Span
from marft.models.run_groups import GroupedRuns, copied_keys, group_scores
from marft.models.weighing import Weighing

SCORES = 2**21  # maximum scores of a block, if at least LEAST queries fit
LEAST, MOST = 64, 512  # minimum and maximum queries of a block
COPIES = 4  # maximum copied keys per token of the batch, for grouped attention
TOGETHER = 2**22  # maximum scores per head for grouped attention


class Piece(NamedTuple):
    """Attention block: queries with a visible key span.

    If ``own`` is true, the keys are those of the queries' own node, and visibility is causal. Otherwise the whole span
    is visible.
    """

    start: int
    stop: int
    keys: Span
    own: bool


@dataclass(frozen=True, slots=True, eq=False)
class KnownKeys:
    """Cached keys and values by layer, [S, K, D] each."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]


class TreePlan:
    """Attention plan for a prefix tree; see :class:`~marft.models.attention.AttentionPlan`.

    Args:
        known: cached keys and values of the rows' prefixes.
        cache: KV cache for the full rows of a prefill.
        slots: cache slots of each row.
    """

    def __init__(
        self,
        forest: Forest,
        device: torch.device,
        known: KnownKeys | None = None,
        cache: KVCache | None = None,
        slots: list[list[int]] | None = None,
    ) -> None:
        self.forest, self.known, self.cache, self.slots = forest, known, cache, slots
        few = copied_keys(forest) <= COPIES * len(forest.ids) and group_scores(forest) <= TOGETHER
        self.together = few  # few keys: nodes attend in groups, with copied keys
        self.grouped: GroupedRuns | None = None
        self.pieces = pieces(forest)
        self.positions = np.zeros(forest.known + len(forest.ids), np.int64)  # position of each key in its rows
        for places in forest.places:
            self.positions[places] = np.arange(len(places))
        self.of_queries, self.of_keys = sent(forest.positions, device), sent(self.positions, device)
        self.whole = sent(np.concatenate(forest.places), device) if cache else None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, weighing: Weighing) -> Tensor:
        """Attend over the prefix tree; see :class:`~marft.models.attention.AttentionPlan`."""
        if self.known is not None:
            k, v = torch.cat([self.known.keys[layer], k]), torch.cat([self.known.values[layer], v])
        if self.cache is not None and self.slots is not None and self.whole is not None:
            lengths = [len(places) for places in self.forest.places]
            self.cache.write_rows(layer, k[self.whole], v[self.whole], lengths, self.slots)
        if self.together or not weighing.plain:
            self.grouped = self.grouped or GroupedRuns(self.forest, q.device)
            return self.grouped.attend(q, k, v, weighing)
        out: Tensor = _Attention.apply(q, k, v, self, weighing)  # type: ignore[no-untyped-call]
        return out

    def blocks(self, heads: int, window: int | None) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
        """Yield blocks: queries, keys, a causal flag, and the visible keys (None: all).

        The causal flag means that the last keys are the queries themselves. Blocks of own nodes come first, so each
        query has an initial result to which later blocks are added.
        """
        for piece in self.pieces:
            first, last = piece.keys
            start = piece.start
            while start < piece.stop:
                step = min(MOST, max(LEAST, SCORES // (heads * (last - first))))
                stop = min(start + step, piece.stop)
                end = first + stop - piece.start if piece.own else last
                queries, keys = slice(start, stop), slice(first, end)
                seen = None
                if window is not None:
                    keys = slice(self._first_in_window(queries, keys, window), end)
                    distance = self.of_queries[queries, None] - self.of_keys[None, keys]
                    seen = (distance < window) & (distance >= 0)
                if keys.start < keys.stop:
                    yield queries, keys, piece.own and seen is None, seen
                start = stop

    def _first_in_window(self, queries: slice, keys: slice, window: int) -> int:
        """Return the first key within the window. The keys in a span have consecutive positions."""
        outside = int(self.forest.positions[queries].min() - self.positions[keys.start]) - window + 1
        return int(min(keys.stop, keys.start + max(0, outside)))


def pieces(forest: Forest) -> list[Piece]:
    """Return the attention blocks: own nodes first, then earlier nodes, merged for adjacent nodes with the same span.

    >>> import numpy as np
    >>> rows = [np.array([5, 6, 7, 8]), np.array([5, 6, 9]), np.array([5, 6, 2, 1])]
    >>> pieces(Forest.of(rows, [None] * 3))[3:]
    [Piece(start=4, stop=7, keys=(0, 2), own=False)]
    """
    own = [Piece(run.start, run.stop, (forest.known + run.start, forest.known + run.stop), True) for run in forest.runs]
    seen: list[Piece] = []
    latest: dict[Span, int] = {}
    for run in forest.runs:
        for span in run.seen:
            at = latest.get(span)
            if at is not None and seen[at].stop == run.start:
                seen[at] = seen[at]._replace(stop=run.stop)
            else:
                latest[span] = len(seen)
                seen.append(Piece(run.start, run.stop, span, False))
    return own + seen


class _Attention(torch.autograd.Function):
    """Blockwise attention: ``q`` [N, H, D], ``k`` and ``v`` [S, K, D] → [N, H, D]; in float32 or better."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: TreePlan, weighing: Weighing) -> Tensor:
        queries, keys, values = _by_head(q, k.shape[1], weighing.scale), _by_head(k), _by_head(v)
        out = queries.new_zeros(*queries.shape[:-1], values.shape[-1])  # [K, G, N, D]
        logs = queries.new_full(queries.shape[:-1], -torch.inf)  # [K, G, N]
        for rows, columns, own, seen in plan.blocks(q.shape[1], weighing.window):
            scores = _scores(queries[:, :, rows], keys[:, columns], own, seen)
            top = scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)
            weights = scores.sub_(top).exp_()
            sums = weights.sum(-1)
            found = (weights.flatten(1, 2) @ values[:, columns]).view_as(out[:, :, rows])
            log = sums.log() + top[..., 0]
            before = logs[:, :, rows]
            now = torch.logaddexp(before, log)
            share = (top[..., 0] - now).exp()[..., None]
            out[:, :, rows] = out[:, :, rows] * (before - now).exp_()[..., None] + found * share
            logs[:, :, rows] = now
        packed = out.permute(2, 0, 1, 3).flatten(1, 2).to(v.dtype)
        ctx.save_for_backward(q, k, v, packed, logs)
        ctx.plan, ctx.weighing = plan, weighing
        return packed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, packed, logs = ctx.saved_tensors
        heads = k.shape[1]
        queries, keys, values = _by_head(q, heads, ctx.weighing.scale), _by_head(k), _by_head(v)
        slopes = _by_head(gradient, heads)
        deltas = (slopes * _by_head(packed, heads)).sum(-1, keepdim=True)
        of_q, of_k, of_v = torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        for rows, columns, own, seen in ctx.plan.blocks(q.shape[1], ctx.weighing.window):
            weights = _scores(queries[:, :, rows], keys[:, columns], own, seen).sub_(logs[:, :, rows, None]).exp_()
            slope = slopes[:, :, rows].flatten(1, 2)
            of_v[:, columns].baddbmm_(weights.flatten(1, 2).transpose(1, 2), slope)
            of_scores = (slope @ values[:, columns].transpose(1, 2)).view_as(weights)
            of_scores = of_scores.sub_(deltas[:, :, rows]).mul_(weights).flatten(1, 2)
            of_q[:, :, rows] += (of_scores @ keys[:, columns]).view_as(of_q[:, :, rows])
            of_k[:, columns].baddbmm_(of_scores.transpose(1, 2), queries[:, :, rows].flatten(1, 2))
        of_q = of_q.mul_(ctx.weighing.scale).permute(2, 0, 1, 3).flatten(1, 2)
        return of_q.to(q.dtype), of_k.transpose(0, 1).to(k.dtype), of_v.transpose(0, 1).to(v.dtype), None, None


def _by_head(x_NHD: Tensor, key_heads: int = 0, scale: float = 1.0) -> Tensor:
    """Transpose [N, H, D] to [H, N, D], or to [K, H/K, N, D] with query heads grouped by key head."""
    exact = x_NHD.to(torch.promote_types(x_NHD.dtype, torch.float32)).transpose(0, 1)
    exact = exact.contiguous() if scale == 1.0 else exact * scale
    return exact.contiguous().view(key_heads, -1, *exact.shape[1:]) if key_heads else exact


def _scores(q_KGND: Tensor, k_KSD: Tensor, own: bool, seen: Tensor | None) -> Tensor:
    """Return the scores, [K, G, N, S]; -inf for invisible keys."""
    heads, groups, count, _ = q_KGND.shape
    scores = (q_KGND.flatten(1, 2) @ k_KSD.transpose(1, 2)).view(heads, groups, count, -1)
    if seen is not None:
        scores.masked_fill_(~seen, -torch.inf)
    elif own and count > 1:
        later = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
        scores[..., -count:].masked_fill_(later, -torch.inf)
    return scores
