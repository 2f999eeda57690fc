"""Packed rows: concatenated token rows without padding, the input for every MARFT forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft.common.types import TokenIds
from marft.models.devices import to_device
from marft.models.prefix_tree import PrefixTree


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Packed rows of tokens, with contiguous spans for the policies.

    >>> rows = PackedRows.from_rows([np.array([5, 6, 7]), np.array([8, 9])], ["planner", "coder"], torch.device("cpu"))
    >>> rows.ids.tolist(), rows.positions.tolist(), rows.lengths, rows.spans
    ([5, 6, 7, 8, 9], [0, 1, 2, 0, 1], [3, 2], [('planner', 0, 3), ('coder', 3, 5)])
    """

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    lengths: list[int]  # [B], sums to N, or to less in a padded batch
    spans: list[tuple[str | None, int, int]]
    fixed_size: bool = False  # whether the batch is padded to a fixed size
    tree: PrefixTree | None = None  # set if shared prefixes are stored once; B then counts the tree's nodes

    @staticmethod
    def from_rows(
        rows: Sequence[TokenIds], policies: Sequence[str | None], device: torch.device, size: int = 0
    ) -> PackedRows:
        """Pack ``rows`` in the given order. A policy may occur several times, at the cost of an additional span.

        Args:
            size: minimum number of tokens, reached by padding. In batches with a fixed size, a row's result is bitwise
                independent of the other rows. This requires kernels that treat all rows of a product alike.
        """
        lengths = [len(row) for row in rows]
        spans: list[tuple[str | None, int, int]] = []
        start = 0
        for policy, length in zip(policies, lengths, strict=True):
            if spans and spans[-1][0] == policy:
                spans[-1] = (policy, spans[-1][1], start + length)
            else:
                spans.append((policy, start, start + length))
            start += length
        padding = np.zeros(max(0, size - start), np.int64)
        ids = to_device(np.concatenate([*rows, padding]).astype(np.int64), device)
        positions = to_device(np.concatenate([*(np.arange(length) for length in lengths), padding]), device)
        return PackedRows(ids, positions, lengths, spans, size > 0)

    @staticmethod
    def from_tree(tree: PrefixTree, device: torch.device, size: int = 0) -> PackedRows:
        """Pack rows with shared prefixes; ``tree.token_indices`` gives the indices of their tokens."""
        padding = np.zeros(max(0, size - len(tree.ids)), np.int64)
        ids = to_device(np.concatenate([tree.ids, padding]).astype(np.int64), device)
        positions = to_device(np.concatenate([tree.positions, padding]), device)
        lengths = [node.stop - node.start for node in tree.nodes]
        return PackedRows(ids, positions, lengths, tree.owner_spans(), size > 0, tree)

    def token_indices(self) -> Sequence[np.ndarray]:
        """Return each row's token indices in the packed batch, one array [length] per row."""
        if self.tree is not None:
            return self.tree.token_indices
        return [start + np.arange(length) for start, length in zip(self.starts(), self.lengths, strict=True)]

    def starts(self) -> list[int]:
        """Return the start index for each row in the packed batch, [B]."""
        return [0, *np.cumsum(self.lengths)[:-1].tolist()]

    def policies(self) -> list[str | None]:
        """Return the policy for each row, [B]."""
        spans = iter(self.spans)
        policy, _, stop = next(spans)
        policies = []
        for start in self.starts():
            while start >= stop:
                policy, _, stop = next(spans)
            policies.append(policy)
        return policies
