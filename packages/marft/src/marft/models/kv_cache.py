"""KV cache for a running batch: one slot per row, slots 0..n-1 in use."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_GROWTH = 1024  # maximum number of tokens added to the capacity at a time


class KVCache:
    """KV cache with one key tensor and one value tensor per layer, ``[slots, K, capacity, D]``.

    The number of slots grows by doubling. The capacity doubles too, but by at most ``MAX_GROWTH`` tokens at a time.
    Rows are left-aligned: token t of a row is in column t of its slot.
    """

    def __init__(self, layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.slots = 0
        self.capacity = 0

    def reserve(self, slots: int, capacity: int) -> None:
        """Grow the cache to at least ``slots`` rows with ``capacity`` tokens; existing content is kept."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        self.slots = max(slots, self.slots if slots <= self.slots else 2 * self.slots)
        self.capacity = max(
            capacity, self.capacity if capacity <= self.capacity else self.capacity + min(self.capacity, MAX_GROWTH)
        )
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                if old is not None:
                    tensors[layer] = self._allocate(old)

    def write_rows(self, layer: int, k_NKD: Tensor, v_NKD: Tensor, lengths: list[int], slots: list[list[int]]) -> None:
        """Store prefilled rows; row i goes to every slot in ``slots[i]`` (rows with a shared prompt)."""
        for tensors, packed in ((self.keys, k_NKD), (self.values, v_NKD)):
            store = tensors[layer]
            if store is None:
                shape = (0, packed.shape[1], 0, packed.shape[2])
                store = tensors[layer] = self._allocate(packed.new_empty(shape))
            start = 0
            for length, row_slots in zip(lengths, slots, strict=True):
                row_KTD = packed[start : start + length].transpose(0, 1)
                for slot in row_slots:
                    store[slot, :, :length] = row_KTD
                start += length

    def flat_positions(self, lengths: Tensor, key_heads: int) -> Tensor:
        """Return the flat index for the next token in slots 0..n-1, [n·K], in the ``[slots·K·capacity, D]`` store."""
        slots = torch.arange(len(lengths), device=lengths.device)
        heads = torch.arange(key_heads, device=lengths.device)
        return ((slots[:, None] * key_heads + heads) * self.capacity + lengths[:, None]).flatten()

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Write one token per row; return the first ``longest`` columns in slots 0..n-1, [n, K, T, D]."""
        rows = len(k)
        keys, values = self.keys[layer], self.values[layer]
        assert keys is not None, "decoding before any prefill"
        assert values is not None
        keys.view(-1, k.shape[-1]).index_copy_(0, positions, k.reshape(-1, k.shape[-1]))
        values.view(-1, v.shape[-1]).index_copy_(0, positions, v.reshape(-1, v.shape[-1]))
        return keys[:rows, :, :longest], values[:rows, :, :longest]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens from slot ``source`` to slot ``target``, which a finished row has freed."""
        for tensor in (*self.keys, *self.values):
            if tensor is not None:
                tensor[target, :, :length] = tensor[source, :, :length]

    def read_slot(self, slot: int, start: int, stop: int) -> list[Tensor]:
        """Copy a token range from a slot: the keys [K, T, D] for each layer, then the values for each layer."""
        return [tensor[slot, :, start:stop].clone() for tensor in (*self.keys, *self.values) if tensor is not None]

    def _allocate(self, old: Tensor) -> Tensor:
        new = old.new_zeros((self.slots, old.shape[1], self.capacity, old.shape[3]))
        new[: old.shape[0], :, : old.shape[2]] = old
        return new
