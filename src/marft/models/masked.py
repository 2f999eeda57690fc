"""Logits of which a grammar allows for some alone: packed masks become minus infinity where they allow for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft.marks import Masks


@dataclass(frozen=True, slots=True, eq=False)
class PackedMasks:
    """Masks of scored tokens. Those that are equal are there once; most tokens have none."""

    which: Tensor  # [R] of each token the row of ``table``, -1 where all is allowed
    table: Tensor  # [M, bytes] uint8: token v is bit v % 8 of byte v // 8

    @staticmethod
    def of(parts: Sequence[tuple[Masks | None, np.ndarray]], device: torch.device) -> PackedMasks | None:
        """Put together; None where nothing is masked.

        Args:
            parts: masks, and for each token that is scored the one in their table, -1 where it has none.
        """
        numbers: dict[bytes, int] = {}
        which = []
        for masks, rows in parts:
            known = [numbers.setdefault(mask, len(numbers)) for mask in (masks.table if masks else ())]
            which.append(np.array([*known, -1], np.int64)[rows])  # the last one is what -1 finds
        if not numbers:
            return None
        width = max(map(len, numbers))
        packed = b"".join(mask.ljust(width, b"\0") for mask in numbers)
        table = torch.frombuffer(bytearray(packed), dtype=torch.uint8).view(-1, width)
        return PackedMasks(torch.from_numpy(np.concatenate(which)).to(device), table.to(device))

    def padded(self, spare: int) -> PackedMasks:
        """The same with more tokens, which have none."""
        return PackedMasks(torch.nn.functional.pad(self.which, (0, spare), value=-1), self.table)

    def rows(self) -> Tensor:
        """The tokens that have one."""
        return torch.nonzero(self.which >= 0)[:, 0]

    def part(self, part: slice) -> PackedMasks:
        """Those of some tokens."""
        return PackedMasks(self.which[part], self.table)


def masked_(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """Logits, changed in place where they are masked. Nothing is done to tokens without a mask."""
    if masks is not None and len(rows := masks.rows()):
        logits_TV[rows] = held(logits_TV[rows], masks.table[masks.which[rows]])
    return logits_TV


def masked(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """As :func:`masked_`, for autograd: what is not allowed gets no gradient."""
    if masks is None or not len(rows := masks.rows()):
        return logits_TV
    return logits_TV.index_copy(0, rows, held(logits_TV[rows], masks.table[masks.which[rows]]))


def held(logits_MV: Tensor, bits: Tensor) -> Tensor:
    """Logits of tokens that all are masked.

    Args:
        bits: the mask of each, packed, [M, bytes] uint8.
    """
    return logits_MV.masked_fill(~allowed(bits, logits_MV.shape[1]), float("-inf"))


def allowed(bits: Tensor, vocabulary: int) -> Tensor:
    """Packed masks → which tokens they allow for, [M, V] bool.

    >>> allowed(torch.tensor([[6]], dtype=torch.uint8), 3).tolist()
    [[False, True, True]]
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    found = ((bits[:, :, None] >> shifts) & 1).flatten(1).bool()
    return torch.nn.functional.pad(found[:, :vocabulary], (0, max(0, vocabulary - found.shape[1])))
