"""Grouped tree attention: nodes of a prefix tree attend together, each with copies of its row's keys.

With many short nodes, indexing the keys in place costs more than the products. Nodes with similar numbers of queries
and keys are therefore padded to the same size, and a single call processes a whole group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from marft.models.attention import padded_length
from marft.models.attention_spec import AttentionSpec, eager_attention
from marft.models.devices import to_device
from marft.models.prefix_tree import PrefixTree, TreeNode

MAX_GROUP_SCORES = 2**23  # maximum scores of a group with several nodes, for one head


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
        self.token_positions = torch.empty(
            len(tree.ids), dtype=torch.long
        )  # index of each token among the padded queries
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
    return padded_length(num_queries), padded_length(
        num_queries + sum(stop - start for start, stop in node.prefix_spans)
    )


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
