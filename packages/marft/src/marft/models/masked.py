"""Logits of which a grammar allows for some alone: packed masks become minus infinity where they allow for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marft.common.marks import Masks
from marft.models.devices import sent


@dataclass(frozen=True, slots=True, eq=False)
class PackedMasks:
    """Masks of scored tokens. Those that are equal are there once; most tokens have none."""

    which: npt.NDArray[np.int64]  # [R] of each token the row of ``table``, -1 where all is allowed
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
        return PackedMasks(np.concatenate(which), table.to(device, non_blocking=True))

    def padded(self, spare: int) -> PackedMasks:
        """The same with more tokens, which have none."""
        return PackedMasks(np.pad(self.which, (0, spare), constant_values=-1), self.table)

    def rows(self) -> tuple[Tensor, Tensor]:
        """The tokens that have one [M], and the mask of each [M, bytes]."""
        at = np.flatnonzero(self.which >= 0)
        return sent(at, self.table.device), self.table[sent(self.which[at], self.table.device)]

    @property
    def empty(self) -> bool:
        """Whether no token has one."""
        return not (self.which >= 0).any()

    def part(self, part: slice) -> PackedMasks:
        """Those of some tokens."""
        return PackedMasks(self.which[part], self.table)


def masked_(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """Logits, changed in place where they are masked. Nothing is done to tokens without a mask."""
    if masks is not None and not masks.empty:
        rows, bits = masks.rows()
        logits_TV[rows] = held(logits_TV[rows], bits)
    return logits_TV


def masked(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """As :func:`masked_`, for autograd: what is not allowed gets no gradient."""
    if masks is None or masks.empty:
        return logits_TV
    rows, bits = masks.rows()
    return logits_TV.index_copy(0, rows, held(logits_TV[rows], bits))


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
