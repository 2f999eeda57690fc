"""Attention over rows with shared prefixes: each query attends to its row's keys at their places in the batch.

A query's keys are in its own tree node and in earlier nodes of its row. The softmax combines the partial results
through the logarithms of their sums: ``o = Σ_i exp(l_i − l) o_i``, ``l = log Σ_i exp(l_i)``. In the backward, ``l``
alone gives the weights of every place (Dao et al. 2022, "FlashAttention"). Scores are computed for a block of queries
at a time, and recomputed for the gradient. Memory therefore does not grow with the square of the row length. If there
are few keys, indexing them in place costs more than the products. Nodes then attend in groups, each with copies of its
row's keys: nodes with similar numbers of queries and keys are padded to the same size, and a single call processes a
whole group (:class:`GroupedAttention`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from marft.models.attention import AttentionSpec, KVCache, eager_attention, padded_length
from marft.models.devices import AutogradContext, to_device
from marft.models.packed_rows import PrefixTree, Span, TreeNode
from marft.models.tree_segments import TreeSegments

MAX_GROUP_SCORES = 2**23  # maximum scores of a group with several nodes, for one head
MAX_BLOCK_SCORES = 2**21  # maximum scores of a block, if at least LEAST queries fit
MIN_BLOCK_QUERIES, MAX_BLOCK_QUERIES = 64, 512  # minimum and maximum queries of a block
MAX_KEY_COPIES = 4  # maximum copied keys per token of the batch, for grouped attention
MAX_GROUPED_SCORES = 2**22  # maximum scores per head for grouped attention


@dataclass(frozen=True, slots=True, eq=False)
class NodeGroup:
    """Group of ``B`` tree nodes with ``L`` queries and ``S`` keys, each padded by repeating its last token."""

    queries: Tensor  # [B, L] token indices in the batch
    keys: Tensor  # [B, S]
    positions: Tensor  # [B, L] positions of the queries in their rows; a row's keys start at position 0
    masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(default_factory=dict, init=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return the attention output, [B · L, H, D].

        Args:
            q: queries of the whole batch, [N, H, D].
            k: keys of all nodes, [S, K, D].
            v: values of all nodes, [S, K, D].
            spec: attention settings of the layer.
        """
        heads = k.shape[1]
        keys, values = (_gather_rows(x, self.keys).transpose(1, 2) for x in (k, v))  # [B, K, S, D]
        if not spec.is_standard:
            out = eager_attention(
                _gather_rows(q, self.queries).transpose(1, 2), keys, values, self._visible_keys(spec.window), spec
            )
            return out.transpose(1, 2).flatten(0, 1)
        queries = _gather_rows(q, self.queries).unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4)  # [B, K, G, L, D]
        mask = self._attention_mask(spec.window, queries.shape[2], q.dtype)
        out = scaled_dot_product_attention(queries.flatten(2, 3), keys, values, attn_mask=mask, scale=spec.scale)
        by_token: Tensor = out.unflatten(2, (-1, queries.shape[3])).permute(0, 3, 1, 2, 4)  # [B, L, K, G, D]
        return by_token.flatten(2, 3).flatten(0, 1)

    def _visible_keys(self, window: int | None) -> Tensor:
        """Return the visible keys, [B, L, S]."""
        columns, positions = torch.arange(self.keys.shape[1], device=self.keys.device), self.positions[..., None]
        visible = columns <= positions
        return visible if window is None else visible.logical_and_(columns > positions - window)

    def _attention_mask(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor:
        """Return the additive mask, [B, 1, groups · L, S], for the query heads sharing a key head."""
        key = window, groups, dtype
        if key not in self.masks:
            visible = self._visible_keys(window)
            mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
            self.masks[key] = mask[:, None].expand(-1, groups, -1, -1).flatten(1, 2)[:, None].contiguous()
        return self.masks[key]


class GroupedAttention:
    """Grouped attention over every node in a prefix tree."""

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        by_size: dict[tuple[int, int], list[TreeNode]] = {}
        for node in tree.nodes:
            by_size.setdefault(_padded_size(node), []).append(node)
        self.groups: list[NodeGroup] = []
        # index of each token among the padded queries
        self.token_positions = torch.empty(len(tree.ids), dtype=torch.long)
        start = 0
        for (length, width), same_size in by_size.items():
            max_nodes = max(1, MAX_GROUP_SCORES // (length * width))
            for first in range(0, len(same_size), max_nodes):
                batch = same_size[first : first + max_nodes]
                self.groups.append(_build_group(batch, length, width, tree, device))
                for node in batch:
                    self.token_positions[node.start : node.stop] = start + torch.arange(node.stop - node.start)
                    start += length
        self.token_positions = self.token_positions.to(device, non_blocking=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return the attention output, [N, H, D], zero for padding tokens.

        Args:
            q: queries, [N, H, D].
            k: keys, [S, K, D].
            v: values, [S, K, D].
            spec: attention settings of the layer.
        """
        parts = [group.attend(q, k, v, spec) for group in self.groups]
        out = (torch.cat(parts) if len(parts) > 1 else parts[0]).index_select(0, self.token_positions)
        padding = len(q) - len(self.token_positions)
        return torch.cat([out, out.new_zeros(padding, *out.shape[1:])]) if padding else out


def count_copied_keys(tree: PrefixTree) -> int:
    """Count the keys copied by :class:`GroupedAttention`."""
    return sum(_padded_size(node)[1] for node in tree.nodes)


def count_group_scores(tree: PrefixTree) -> int:
    """Count the attention scores for each head in :class:`GroupedAttention`."""
    return sum(length * width for length, width in map(_padded_size, tree.nodes))


def _padded_size(node: TreeNode) -> tuple[int, int]:
    """Return the padded numbers of queries and keys."""
    num_queries = node.stop - node.start
    num_keys = num_queries + sum(stop - start for start, stop in node.prefix_spans)
    return padded_length(num_queries), padded_length(num_keys)


def _build_group(nodes: list[TreeNode], length: int, width: int, tree: PrefixTree, device: torch.device) -> NodeGroup:
    queries, keys, positions = [], [], []
    for node in nodes:
        spans = (*node.prefix_spans, (tree.cached_keys + node.start, tree.cached_keys + node.stop))
        row_keys = np.concatenate([np.arange(*span) for span in spans])
        last, before = node.stop - node.start - 1, len(row_keys) - (node.stop - node.start)
        at = np.minimum(np.arange(length), last)
        queries.append(node.start + at)
        keys.append(row_keys[np.minimum(np.arange(width), len(row_keys) - 1)])
        positions.append(before + at)
    return NodeGroup(*[to_device(np.stack(part), device) for part in (queries, keys, positions)])


def _gather_rows(x_NHD: Tensor, index_BT: Tensor) -> Tensor:
    """Gather rows, [B, T, H, D]. The gradient sums in a deterministic order, whatever the number of threads."""
    return x_NHD.flatten(1).index_select(0, index_BT.flatten()).view(*index_BT.shape, *x_NHD.shape[1:])


class AttentionBlock(NamedTuple):
    """Attention block: queries with a visible key span.

    If ``is_own_node`` is true, the keys are those of the queries' own node, and visibility is causal. Otherwise the
    whole span is visible.
    """

    start: int
    stop: int
    keys: Span
    is_own_node: bool


@dataclass(frozen=True, slots=True, eq=False)
class CachedKeyValues:
    """Cached keys and values by layer, [S, K, D] each."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]


class TreePlan:
    """Attention plan for a prefix tree; see :class:`~marft.models.attention.AttentionPlan`.

    Args:
        cached: cached keys and values of the rows' prefixes.
        cache: KV cache for the full rows of a prefill.
        slots: cache slots of each row.
    """

    def __init__(
        self,
        tree: PrefixTree,
        device: torch.device,
        cached: CachedKeyValues | None = None,
        cache: KVCache | None = None,
        slots: list[list[int]] | None = None,
    ) -> None:
        self.tree, self.cached, self.cache, self.slots, self.device = tree, cached, cache, slots, device
        few_copies = count_copied_keys(tree) <= MAX_KEY_COPIES * len(tree.ids)
        # few keys: nodes attend in groups, with copied keys
        self.use_groups = few_copies and count_group_scores(tree) <= MAX_GROUPED_SCORES
        self.grouped: GroupedAttention | None = None
        self.attention_blocks = build_blocks(tree)
        self.positions = np.zeros(tree.cached_keys + len(tree.ids), np.int64)  # position of each key in its rows
        for indices in tree.token_indices:
            self.positions[indices] = np.arange(len(indices))
        self.query_positions, self.key_positions = to_device(tree.positions, device), to_device(self.positions, device)
        self.all_indices = to_device(np.concatenate(tree.token_indices), device) if cache else None

    @cached_property
    def segments(self) -> TreeSegments:
        """Segments of the tree, for recurrent layers."""
        return TreeSegments(self.tree, self.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Attend over the prefix tree; see :class:`~marft.models.attention.AttentionPlan`."""
        if self.cached is not None:
            k, v = torch.cat([self.cached.keys[layer], k]), torch.cat([self.cached.values[layer], v])
        if self.cache is not None and self.slots is not None and self.all_indices is not None:
            lengths = [len(indices) for indices in self.tree.token_indices]
            self.cache.write_rows(layer, k[self.all_indices], v[self.all_indices], lengths, self.slots)
        if self.use_groups or not spec.is_standard:
            self.grouped = self.grouped or GroupedAttention(self.tree, q.device)
            return self.grouped.attend(q, k, v, spec)
        out: Tensor = _Attention.apply(q, k, v, self, spec)  # type: ignore[no-untyped-call]
        return out

    def iter_blocks(self, heads: int, window: int | None) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
        """Yield blocks: queries, keys, a causal flag, and the visible keys (None: all).

        The causal flag means that the last keys are the queries themselves. Blocks of own nodes come first, so each
        query has an initial result to which later blocks are added.
        """
        for block in self.attention_blocks:
            first, last = block.keys
            start = block.start
            while start < block.stop:
                step = min(MAX_BLOCK_QUERIES, max(MIN_BLOCK_QUERIES, MAX_BLOCK_SCORES // (heads * (last - first))))
                stop = min(start + step, block.stop)
                end = first + stop - block.start if block.is_own_node else last
                queries, keys = slice(start, stop), slice(first, end)
                visible = None
                if window is not None:
                    keys = slice(self._first_in_window(queries, keys, window), end)
                    offset = self.query_positions[queries, None] - self.key_positions[None, keys]
                    visible = (offset < window) & (offset >= 0)
                if keys.start < keys.stop:
                    yield queries, keys, block.is_own_node and visible is None, visible
                start = stop

    def _first_in_window(self, queries: slice, keys: slice, window: int) -> int:
        """Return the first key within the window. The keys in a span have consecutive positions."""
        outside = int(self.tree.positions[queries].min() - self.positions[keys.start]) - window + 1
        return int(min(keys.stop, keys.start + max(0, outside)))


def build_blocks(tree: PrefixTree) -> list[AttentionBlock]:
    """Return the attention blocks: own nodes first, then earlier nodes, merged for adjacent nodes with the same span.

    >>> import numpy as np
    >>> rows = [np.array([5, 6, 7, 8]), np.array([5, 6, 9]), np.array([5, 6, 2, 1])]
    >>> build_blocks(PrefixTree.from_rows(rows, [None] * 3))[3:]
    [AttentionBlock(start=4, stop=7, keys=(0, 2), is_own_node=False)]
    """
    own_blocks = [
        AttentionBlock(node.start, node.stop, (tree.cached_keys + node.start, tree.cached_keys + node.stop), True)
        for node in tree.nodes
    ]
    prefix_blocks: list[AttentionBlock] = []
    latest: dict[Span, int] = {}
    for node in tree.nodes:
        for span in node.prefix_spans:
            at = latest.get(span)
            if at is not None and prefix_blocks[at].stop == node.start:
                prefix_blocks[at] = prefix_blocks[at]._replace(stop=node.stop)
            else:
                latest[span] = len(prefix_blocks)
                prefix_blocks.append(AttentionBlock(node.start, node.stop, span, False))
    return own_blocks + prefix_blocks


class _Attention(torch.autograd.Function):
    """Blockwise attention: ``q`` [N, H, D], ``k`` and ``v`` [S, K, D] → [N, H, D]; in float32 or better."""

    @staticmethod
    def forward(ctx: AutogradContext, q: Tensor, k: Tensor, v: Tensor, plan: TreePlan, spec: AttentionSpec) -> Tensor:
        queries, keys, values = _split_heads(q, k.shape[1], spec.scale), _split_heads(k), _split_heads(v)
        out = queries.new_zeros(*queries.shape[:-1], values.shape[-1])  # [K, G, N, D]
        log_sums = queries.new_full(queries.shape[:-1], -torch.inf)  # [K, G, N]
        for rows, columns, is_own_node, visible in plan.iter_blocks(q.shape[1], spec.window):
            scores = _attention_scores(queries[:, :, rows], keys[:, columns], is_own_node, visible)
            top = scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)
            weights = scores.sub_(top).exp_()
            sums = weights.sum(-1)
            partial = (weights.flatten(1, 2) @ values[:, columns]).view_as(out[:, :, rows])
            block_log_sum = sums.log() + top[..., 0]
            previous = log_sums[:, :, rows]
            updated = torch.logaddexp(previous, block_log_sum)
            share = (top[..., 0] - updated).exp()[..., None]
            out[:, :, rows] = out[:, :, rows] * (previous - updated).exp_()[..., None] + partial * share
            log_sums[:, :, rows] = updated
        packed = out.permute(2, 0, 1, 3).flatten(1, 2).to(v.dtype)
        ctx.save_for_backward(q, k, v, packed, log_sums)
        ctx.plan, ctx.weighing = plan, spec
        return packed

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, packed, log_sums = ctx.saved_tensors
        heads = k.shape[1]
        queries, keys, values = _split_heads(q, heads, ctx.weighing.scale), _split_heads(k), _split_heads(v)
        output_grads = _split_heads(gradient, heads)
        deltas = (output_grads * _split_heads(packed, heads)).sum(-1, keepdim=True)
        q_grad, k_grad, v_grad = torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        for rows, columns, is_own_node, visible in ctx.plan.iter_blocks(q.shape[1], ctx.weighing.window):
            scores = _attention_scores(queries[:, :, rows], keys[:, columns], is_own_node, visible)
            weights = scores.sub_(log_sums[:, :, rows, None]).exp_()
            block_grads = output_grads[:, :, rows].flatten(1, 2)
            v_grad[:, columns].baddbmm_(weights.flatten(1, 2).transpose(1, 2), block_grads)
            score_grads = (block_grads @ values[:, columns].transpose(1, 2)).view_as(weights)
            score_grads = score_grads.sub_(deltas[:, :, rows]).mul_(weights).flatten(1, 2)
            q_grad[:, :, rows] += (score_grads @ keys[:, columns]).view_as(q_grad[:, :, rows])
            k_grad[:, columns].baddbmm_(score_grads.transpose(1, 2), queries[:, :, rows].flatten(1, 2))
        q_grad = q_grad.mul_(ctx.weighing.scale).permute(2, 0, 1, 3).flatten(1, 2)
        return q_grad.to(q.dtype), k_grad.transpose(0, 1).to(k.dtype), v_grad.transpose(0, 1).to(v.dtype), None, None


def _split_heads(x_NHD: Tensor, key_heads: int = 0, scale: float = 1.0) -> Tensor:
    """Transpose [N, H, D] to [H, N, D], or to [K, H/K, N, D] with query heads grouped by key head."""
    exact = x_NHD.to(torch.promote_types(x_NHD.dtype, torch.float32)).transpose(0, 1)
    exact = exact.contiguous() if scale == 1.0 else exact * scale
    return exact.contiguous().view(key_heads, -1, *exact.shape[1:]) if key_heads else exact


def _attention_scores(q_KGND: Tensor, k_KSD: Tensor, is_own_node: bool, visible: Tensor | None) -> Tensor:
    """Return the scores, [K, G, N, S]; -inf for invisible keys."""
    heads, groups, count, _ = q_KGND.shape
    scores = (q_KGND.flatten(1, 2) @ k_KSD.transpose(1, 2)).view(heads, groups, count, -1)
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    elif is_own_node and count > 1:
        later = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
        scores[..., -count:].masked_fill_(later, -torch.inf)
    return scores
