"""Packed rows: concatenated token rows without padding, the input for every MARFT forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft.common.types import TokenIds
from marft.models.devices import sent
from marft.models.forest import Forest


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Packed rows of tokens, with contiguous spans for the policies.

    >>> rows = PackedRows.of([np.array([5, 6, 7]), np.array([8, 9])], ["planner", "coder"], torch.device("cpu"))
    >>> rows.ids.tolist(), rows.positions.tolist(), rows.lengths, rows.stretches
    ([5, 6, 7, 8, 9], [0, 1, 2, 0, 1], [3, 2], [('planner', 0, 3), ('coder', 3, 5)])
    """

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    lengths: list[int]  # [B], sums to N, or to less in a padded batch
    stretches: list[tuple[str | None, int, int]]
    filled: bool = False  # whether the batch is padded to a fixed size
    forest: Forest | None = None  # set if shared prefixes are stored once; B then counts the tree's nodes

    @staticmethod
    def of(rows: Sequence[TokenIds], policies: Sequence[str | None], device: torch.device, size: int = 0) -> PackedRows:
        """Pack ``rows`` in the given order. A policy may occur several times, at the cost of an additional span.

        Args:
            size: minimum number of tokens, reached by padding. In batches with a fixed size, a row's result is bitwise
                independent of the other rows. This requires kernels that treat all rows of a product alike.
        """
        lengths = [len(row) for row in rows]
        stretches: list[tuple[str | None, int, int]] = []
        start = 0
        for policy, length in zip(policies, lengths, strict=True):
            if stretches and stretches[-1][0] == policy:
                stretches[-1] = (policy, stretches[-1][1], start + length)
            else:
                stretches.append((policy, start, start + length))
            start += length
        spare = np.zeros(max(0, size - start), np.int64)
        ids = sent(np.concatenate([*rows, spare]).astype(np.int64), device)
        positions = sent(np.concatenate([*(np.arange(length) for length in lengths), spare]), device)
        return PackedRows(ids, positions, lengths, stretches, size > 0)

    @staticmethod
    def sharing(forest: Forest, device: torch.device, size: int = 0) -> PackedRows:
        """Pack rows with shared prefixes; ``forest.places`` gives the indices of their tokens."""
        spare = np.zeros(max(0, size - len(forest.ids)), np.int64)
        ids = sent(np.concatenate([forest.ids, spare]).astype(np.int64), device)
        positions = sent(np.concatenate([forest.positions, spare]), device)
        lengths = [run.stop - run.start for run in forest.runs]
        return PackedRows(ids, positions, lengths, forest.stretches(), size > 0, forest)

    def places(self) -> Sequence[np.ndarray]:
        """Return each row's token indices in the packed batch, one array [length] per row."""
        if self.forest is not None:
            return self.forest.places
        return [start + np.arange(length) for start, length in zip(self.starts(), self.lengths, strict=True)]

    def starts(self) -> list[int]:
        """Return the start index for each row in the packed batch, [B]."""
        return [0, *np.cumsum(self.lengths)[:-1].tolist()]

    def policies(self) -> list[str | None]:
        """Return the policy for each row, [B]."""
        found = iter(self.stretches)
        policy, _, stop = next(found)
        policies = []
        for start in self.starts():
            while start >= stop:
                policy, _, stop = next(found)
            policies.append(policy)
        return policies
