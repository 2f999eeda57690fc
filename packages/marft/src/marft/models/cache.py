"""Keys and values of a running batch: a slot a row, slots 0..n-1 in use, finished rows swapped out."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_COLUMNS = 1024  # that are added at a time


class KVCache:
    """One tensor a layer for keys and one for values, ``[slots, K, capacity, D]``, grown by doubling; of long rows by
    ``MOST_COLUMNS`` at a time.

    Rows are left-aligned: token t of a row lies in column t of its slot.
    """

    def __init__(self, layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.slots = 0
        self.capacity = 0

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for ``slots`` rows of ``capacity`` tokens, keeping what is there."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        self.slots = max(slots, self.slots if slots <= self.slots else 2 * self.slots)
        self.capacity = max(
            capacity, self.capacity if capacity <= self.capacity else self.capacity + min(self.capacity, MOST_COLUMNS)
        )
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                if old is not None:
                    tensors[layer] = self._allocate(old)

    def write_rows(self, layer: int, k_NKD: Tensor, v_NKD: Tensor, lengths: list[int], slots: list[list[int]]) -> None:
        """Store prefilled rows; row i goes to every slot of ``slots[i]`` (rows that share a prompt)."""
        for tensors, packed in ((self.keys, k_NKD), (self.values, v_NKD)):
            store = tensors[layer]
            if store is None:
                shape = (0, packed.shape[1], 0, packed.shape[2])
                store = tensors[layer] = self._allocate(packed.new_empty(shape))
            start = 0
            for length, of_row in zip(lengths, slots, strict=True):
                row_KTD = packed[start : start + length].transpose(0, 1)
                for slot in of_row:
                    store[slot, :, :length] = row_KTD
                start += length

    def flat_positions(self, lengths: Tensor, key_heads: int) -> Tensor:
        """Where the next token of slots 0..n-1 goes in the flattened ``[slots·K·capacity, D]`` store, [n·K]."""
        slots = torch.arange(len(lengths), device=lengths.device)
        heads = torch.arange(key_heads, device=lengths.device)
        return ((slots[:, None] * key_heads + heads) * self.capacity + lengths[:, None]).flatten()

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Write one token a row and return the first ``longest`` columns of slots 0..n-1, [n, K, T, D]."""
        rows = len(k)
        keys, values = self.keys[layer], self.values[layer]
        assert keys is not None, "decoding before any prefill"
        assert values is not None
        keys.view(-1, k.shape[-1]).index_copy_(0, positions, k.reshape(-1, k.shape[-1]))
        values.view(-1, v.shape[-1]).index_copy_(0, positions, v.reshape(-1, v.shape[-1]))
        return keys[:rows, :, :longest], values[:rows, :, :longest]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of a slot over another: how a finished row makes room."""
        for tensor in (*self.keys, *self.values):
            if tensor is not None:
                tensor[target, :, :length] = tensor[source, :, :length]

    def of_slot(self, slot: int, start: int, stop: int) -> list[Tensor]:
        """A copy of some tokens of a slot: of each layer keys [K, T, D], then of each layer values."""
        return [tensor[slot, :, start:stop].clone() for tensor in (*self.keys, *self.values) if tensor is not None]

    def _allocate(self, old: Tensor) -> Tensor:
        new = old.new_zeros((self.slots, old.shape[1], self.capacity, old.shape[3]))
        new[: old.shape[0], :, : old.shape[2]] = old
        return new
