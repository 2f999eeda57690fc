"""Grammar masks on logits: disallowed tokens get minus infinity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marft.common.token_data import GrammarMasks
from marft.models.devices import to_device


@dataclass(frozen=True, slots=True, eq=False)
class PackedMasks:
    """Grammar masks for scored tokens, deduplicated; most tokens have no mask."""

    indices: npt.NDArray[np.int64]  # [R] row of ``table`` for each token, -1 if all tokens are allowed
    table: Tensor  # [M, bytes] uint8: token v is bit v % 8 of byte v // 8

    @staticmethod
    def from_parts(parts: Sequence[tuple[GrammarMasks | None, np.ndarray]], device: torch.device) -> PackedMasks | None:
        """Concatenate the mask tables; None without masks.

        Args:
            parts: pairs of masks and, for each scored token, the index in their table, -1 for no mask.
        """
        numbers: dict[bytes, int] = {}
        indices = []
        for masks, rows in parts:
            mask_indices = [numbers.setdefault(mask, len(numbers)) for mask in (masks.table if masks else ())]
            indices.append(np.array([*mask_indices, -1], np.int64)[rows])  # index -1 selects the last entry
        if not numbers:
            return None
        width = max(map(len, numbers))
        packed = b"".join(mask.ljust(width, b"\0") for mask in numbers)
        table = torch.frombuffer(bytearray(packed), dtype=torch.uint8).view(-1, width)
        return PackedMasks(np.concatenate(indices), table.to(device, non_blocking=True))

    def pad(self, padding: int) -> PackedMasks:
        """Append ``padding`` tokens without masks."""
        return PackedMasks(np.pad(self.indices, (0, padding), constant_values=-1), self.table)

    def masked_rows(self) -> tuple[Tensor, Tensor]:
        """Return the indices of masked tokens, [M], and their masks, [M, bytes]."""
        at = np.flatnonzero(self.indices >= 0)
        return to_device(at, self.table.device), self.table[to_device(self.indices[at], self.table.device)]

    @property
    def is_empty(self) -> bool:
        """True if every token lacks a mask."""
        return not (self.indices >= 0).any()

    def select(self, part: slice) -> PackedMasks:
        """Select the masks for a slice of the tokens."""
        return PackedMasks(self.indices[part], self.table)


def apply_masks_(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """Apply the masks to the logits in place, [T, V]; tokens without a mask stay unchanged."""
    if masks is not None and not masks.is_empty:
        rows, bits = masks.masked_rows()
        logits_TV[rows] = mask_logits(logits_TV[rows], bits)
    return logits_TV


def apply_masks(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """Apply the masks with autograd, [T, V]; disallowed tokens get no gradient."""
    if masks is None or masks.is_empty:
        return logits_TV
    rows, bits = masks.masked_rows()
    return logits_TV.index_copy(0, rows, mask_logits(logits_TV[rows], bits))


def mask_logits(logits_MV: Tensor, bits: Tensor) -> Tensor:
    """Set disallowed tokens to minus infinity. Every row needs a mask.

    Args:
        bits: packed mask of each row, [M, bytes] uint8.
    """
    return logits_MV.masked_fill(~unpack_masks(bits, logits_MV.shape[1]), float("-inf"))


def unpack_masks(bits: Tensor, vocabulary: int) -> Tensor:
    """Unpack masks to allowed tokens, [M, V] bool.

    >>> unpack_masks(torch.tensor([[6]], dtype=torch.uint8), 3).tolist()
    [[False, True, True]]
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    unpacked = ((bits[:, :, None] >> shifts) & 1).flatten(1).bool()
    return torch.nn.functional.pad(unpacked[:, :vocabulary], (0, max(0, vocabulary - unpacked.shape[1])))
