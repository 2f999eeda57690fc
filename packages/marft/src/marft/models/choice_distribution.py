"""Distribution over options by normalized log-probability, for sampling and training.

Source: TWOSOME (Tan et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft.models.devices import to_device


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceSets:
    """Option lists for C choices. The tokens of all O options are concatenated.

    >>> sets = ChoiceSets.from_lengths([[2, 1], [3]], [[1.0, 1.0], [3.0]], torch.device("cpu"))
    >>> sets.option_of.tolist(), sets.grid.tolist()
    ([0, 0, 1, 2, 2, 2], [[0, 1], [2, 3]])
    """

    option_of: Tensor  # [tokens] option index of each token
    normalizers: Tensor  # [O] length normalizer Z of each option
    grid: Tensor  # [C, longest list] option indices of each choice, padded with O

    @staticmethod
    def from_lengths(
        lengths: Sequence[Sequence[int]], normalizers: Sequence[Sequence[float]], device: torch.device
    ) -> ChoiceSets:
        """Build the sets from token counts and normalizers Z, for every option per choice."""
        counts = [len(options) for options in lengths]
        total = sum(counts)
        grid = np.full((len(counts), max(counts)), total)
        first = 0
        for row, count in enumerate(counts):
            grid[row, :count] = np.arange(first, first + count)
            first += count
        tokens = np.repeat(np.arange(total), [length for options in lengths for length in options])
        z = np.array([z for options in normalizers for z in options], np.float32)
        return ChoiceSets(*(to_device(array, device) for array in (tokens, z, grid)))

    def log_softmax(self, token_log_probs: Tensor) -> Tensor:
        """Return ``log π(a) = log softmax over a of log P(a)/Z_a``, [C, longest list]; −∞ pads shorter lists."""
        sums = torch.zeros_like(self.normalizers, dtype=token_log_probs.dtype)
        scores = sums.index_add(0, self.option_of, token_log_probs) / self.normalizers.to(token_log_probs.dtype)
        padding = scores.new_full((1,), -torch.inf)
        return torch.cat([scores, padding])[self.grid].log_softmax(-1)


def compute_entropies(log_softmax: Tensor) -> Tensor:
    """Return the entropy for each choice, [C]."""
    finite = log_softmax.masked_fill(log_softmax.isinf(), 0.0)
    return -(log_softmax.exp() * finite).sum(-1)
