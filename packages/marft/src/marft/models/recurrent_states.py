"""States of recurrent layers for running rows: the last inputs of convolutions, and recurrent states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from marft.models.devices import to_device


class RecurrentStates:
    """States by layer and kind (``conv`` or ``recurrent``), ``[slots, …]`` each; decoding updates them in place."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[int, str], Tensor] = {}
        self.slots = 0

    def reserve(self, slots: int) -> None:
        """Grow to at least ``slots`` rows; existing states are kept."""
        if slots > self.slots:
            self.slots = slots
            self.tensors = {key: _resize(tensor, slots) for key, tensor in self.tensors.items()}

    def write(self, layer: int, kind: str, states: Tensor, slots: Sequence[Sequence[int]]) -> None:
        """Store states, [B, …]; state i goes to every slot in ``slots[i]``."""
        if (layer, kind) not in self.tensors:
            self.tensors[layer, kind] = _resize(states[:0], self.slots)
        sources = np.repeat(np.arange(len(slots)), list(map(len, slots)))
        targets = np.array([slot for row_slots in slots for slot in row_slots])
        stored = self.tensors[layer, kind]
        stored[to_device(targets, stored.device)] = states.detach()[to_device(sources, stored.device)].to(stored.dtype)

    def move(self, source: int, target: int) -> None:
        """Copy the states of slot ``source`` to slot ``target``."""
        for tensor in self.tensors.values():
            tensor[target] = tensor[source]


def _resize(states: Tensor, slots: int) -> Tensor:
    resized = states.new_zeros((slots, *states.shape[1:]))
    resized[: len(states)] = states
    return resized
