"""Rows of tokens as every forward of MARFT gets them: one after the other, with no padding."""

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
    """Rows of tokens, one after the other, each policy's rows in one stretch.

    >>> rows = PackedRows.of([np.array([5, 6, 7]), np.array([8, 9])], ["planner", "coder"], torch.device("cpu"))
    >>> rows.ids.tolist(), rows.positions.tolist(), rows.lengths, rows.stretches
    ([5, 6, 7, 8, 9], [0, 1, 2, 0, 1], [3, 2], [('planner', 0, 3), ('coder', 3, 5)])
    """

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    lengths: list[int]  # [B], sums to N, or to less where the batch has been filled up
    stretches: list[tuple[str | None, int, int]]
    filled: bool = False  # to a size that its rows have not decided
    forest: Forest | None = None  # where what rows begin with alike is there once; B then counts its runs

    @staticmethod
    def of(rows: Sequence[TokenIds], policies: Sequence[str | None], device: torch.device, size: int = 0) -> PackedRows:
        """Pack ``rows`` in the order given. A policy may come back later: that costs a stretch, nothing else.

        Args:
            size: tokens to fill the batch up to. In batches of one size a row comes out the same to the bit, whatever
                lies beside it, where the kernels of the device treat the rows of a product alike.
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
        """Lay out rows that share what they begin with; ``forest.places`` says where their tokens are."""
        spare = np.zeros(max(0, size - len(forest.ids)), np.int64)
        ids = sent(np.concatenate([forest.ids, spare]).astype(np.int64), device)
        positions = sent(np.concatenate([forest.positions, spare]), device)
        lengths = [run.stop - run.start for run in forest.runs]
        return PackedRows(ids, positions, lengths, forest.stretches(), size > 0, forest)

    def places(self) -> Sequence[np.ndarray]:
        """Where each row's tokens are in the packed batch: [length] a row."""
        if self.forest is not None:
            return self.forest.places
        return [start + np.arange(length) for start, length in zip(self.starts(), self.lengths, strict=True)]

    def starts(self) -> list[int]:
        """Where each row begins in the packed batch, [B]."""
        return [0, *np.cumsum(self.lengths)[:-1].tolist()]

    def policies(self) -> list[str | None]:
        """Of each row, [B]."""
        found = iter(self.stretches)
        policy, _, stop = next(found)
        policies = []
        for start in self.starts():
            while start >= stop:
                policy, _, stop = next(found)
            policies.append(policy)
        return policies
