"""Grammar masks on logits: disallowed tokens get minus infinity."""

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
    """Grammar masks for scored tokens, deduplicated; most tokens have no mask."""

    which: npt.NDArray[np.int64]  # [R] row of ``table`` for each token, -1 if all tokens are allowed
    table: Tensor  # [M, bytes] uint8: token v is bit v % 8 of byte v // 8

    @staticmethod
    def of(parts: Sequence[tuple[Masks | None, np.ndarray]], device: torch.device) -> PackedMasks | None:
        """Concatenate the mask tables; None without masks.

        Args:
            parts: pairs of masks and, for each scored token, the index in their table, -1 for no mask.
        """
        numbers: dict[bytes, int] = {}
        which = []
        for masks, rows in parts:
            known = [numbers.setdefault(mask, len(numbers)) for mask in (masks.table if masks else ())]
            which.append(np.array([*known, -1], np.int64)[rows])  # index -1 selects the last entry
        if not numbers:
            return None
        width = max(map(len, numbers))
        packed = b"".join(mask.ljust(width, b"\0") for mask in numbers)
        table = torch.frombuffer(bytearray(packed), dtype=torch.uint8).view(-1, width)
        return PackedMasks(np.concatenate(which), table.to(device, non_blocking=True))

    def padded(self, spare: int) -> PackedMasks:
        """Append ``spare`` tokens without masks."""
        return PackedMasks(np.pad(self.which, (0, spare), constant_values=-1), self.table)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return the indices of masked tokens, [M], and their masks, [M, bytes]."""
        at = np.flatnonzero(self.which >= 0)
        return sent(at, self.table.device), self.table[sent(self.which[at], self.table.device)]

    @property
    def empty(self) -> bool:
        """True if every token lacks a mask."""
        return not (self.which >= 0).any()

    def part(self, part: slice) -> PackedMasks:
        """Select the masks for a slice of the tokens."""
        return PackedMasks(self.which[part], self.table)


def masked_(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """Apply the masks to the logits in place, [T, V]; tokens without a mask stay unchanged."""
    if masks is not None and not masks.empty:
        rows, bits = masks.rows()
        logits_TV[rows] = held(logits_TV[rows], bits)
    return logits_TV


def masked(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """Apply the masks with autograd, [T, V]; disallowed tokens get no gradient."""
    if masks is None or masks.empty:
        return logits_TV
    rows, bits = masks.rows()
    return logits_TV.index_copy(0, rows, held(logits_TV[rows], bits))


def held(logits_MV: Tensor, bits: Tensor) -> Tensor:
    """Set disallowed tokens to minus infinity. Every row needs a mask.

    Args:
        bits: packed mask of each row, [M, bytes] uint8.
    """
    return logits_MV.masked_fill(~allowed(bits, logits_MV.shape[1]), float("-inf"))


def allowed(bits: Tensor, vocabulary: int) -> Tensor:
    """Unpack masks to allowed tokens, [M, V] bool.

    >>> allowed(torch.tensor([[6]], dtype=torch.uint8), 3).tolist()
    [[False, True, True]]
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    found = ((bits[:, :, None] >> shifts) & 1).flatten(1).bool()
    return torch.nn.functional.pad(found[:, :vocabulary], (0, max(0, vocabulary - found.shape[1])))
