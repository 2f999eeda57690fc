"""Grouped tree attention: nodes of a prefix tree attend together, each with copies of its row's keys.

With many short nodes, indexing the keys in place costs more than the products. Nodes with similar numbers of queries
and keys are therefore padded to the same size, and a single call processes a whole group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from marft.models.attention import padded_length
from marft.models.devices import sent
from marft.models.forest import Forest, Run
from marft.models.weighing import Weighing, weigh

SCORES = 2**23  # maximum scores of a group with several nodes, for one head


@dataclass(frozen=True, slots=True, eq=False)
class RunGroup:
    """Group of ``B`` tree nodes with ``L`` queries and ``S`` keys, each padded by repeating its last token."""

    queries: Tensor  # [B, L] token indices in the batch
    keys: Tensor  # [B, S]
    positions: Tensor  # [B, L] positions of the queries in their rows; a row's keys start at position 0
    masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(default_factory=dict, init=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, weighing: Weighing) -> Tensor:
        """Return the attention output, [B · L, H, D].

        Args:
            q: queries of the whole batch, [N, H, D].
            k: keys of all nodes, [S, K, D].
            v: values of all nodes, [S, K, D].
            weighing: attention settings of the layer.
        """
        heads = k.shape[1]
        keys, values = (_rows(x, self.keys).transpose(1, 2) for x in (k, v))  # [B, K, S, D]
        if not weighing.plain:
            out = weigh(_rows(q, self.queries).transpose(1, 2), keys, values, self._seen(weighing.window), weighing)
            return out.transpose(1, 2).flatten(0, 1)
        queries = _rows(q, self.queries).unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4)  # [B, K, G, L, D]
        mask = self._mask(weighing.window, queries.shape[2], q.dtype)
        out = scaled_dot_product_attention(queries.flatten(2, 3), keys, values, attn_mask=mask, scale=weighing.scale)
        by_token: Tensor = out.unflatten(2, (-1, queries.shape[3])).permute(0, 3, 1, 2, 4)  # [B, L, K, G, D]
        return by_token.flatten(2, 3).flatten(0, 1)

    def _seen(self, window: int | None) -> Tensor:
        """Return the visible keys, [B, L, S]."""
        columns, positions = torch.arange(self.keys.shape[1], device=self.keys.device), self.positions[..., None]
        seen = columns <= positions
        return seen if window is None else seen.logical_and_(columns > positions - window)

    def _mask(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor:
        """Return the additive mask, [B, 1, groups · L, S], for the query heads sharing a key head."""
        key = window, groups, dtype
        if key not in self.masks:
            seen = self._seen(window)
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
            self.masks[key] = mask[:, None].expand(-1, groups, -1, -1).flatten(1, 2)[:, None].contiguous()
        return self.masks[key]


class GroupedRuns:
    """Grouped attention over every node in a prefix tree."""

    def __init__(self, forest: Forest, device: torch.device) -> None:
        by_size: dict[tuple[int, int], list[Run]] = {}
        for run in forest.runs:
            by_size.setdefault(_padded(run), []).append(run)
        self.groups: list[RunGroup] = []
        self.place = torch.empty(len(forest.ids), dtype=torch.long)  # index of each token among the padded queries
        start = 0
        for (length, width), alike in by_size.items():
            most = max(1, SCORES // (length * width))
            for first in range(0, len(alike), most):
                some = alike[first : first + most]
                self.groups.append(_group(some, length, width, forest, device))
                for run in some:
                    self.place[run.start : run.stop] = start + torch.arange(run.stop - run.start)
                    start += length
        self.place = self.place.to(device, non_blocking=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, weighing: Weighing) -> Tensor:
        """Return the attention output, [N, H, D], zero for padding tokens.

        Args:
            q: queries, [N, H, D].
            k: keys, [S, K, D].
            v: values, [S, K, D].
            weighing: attention settings of the layer.
        """
        parts = [group.attend(q, k, v, weighing) for group in self.groups]
        out = (torch.cat(parts) if len(parts) > 1 else parts[0]).index_select(0, self.place)
        spare = len(q) - len(self.place)
        return torch.cat([out, out.new_zeros(spare, *out.shape[1:])]) if spare else out


def copied_keys(forest: Forest) -> int:
    """Count the keys copied by :class:`GroupedRuns`."""
    return sum(_padded(run)[1] for run in forest.runs)


def group_scores(forest: Forest) -> int:
    """Count the attention scores for each head in :class:`GroupedRuns`."""
    return sum(length * width for length, width in map(_padded, forest.runs))


def _padded(run: Run) -> tuple[int, int]:
    """Return the padded numbers of queries and keys."""
    own = run.stop - run.start
    return padded_length(own), padded_length(own + sum(stop - start for start, stop in run.seen))


def _group(runs: list[Run], length: int, width: int, forest: Forest, device: torch.device) -> RunGroup:
    queries, keys, positions = [], [], []
    for run in runs:
        spans = (*run.seen, (forest.known + run.start, forest.known + run.stop))
        of_row = np.concatenate([np.arange(*span) for span in spans])
        last, before = run.stop - run.start - 1, len(of_row) - (run.stop - run.start)
        at = np.minimum(np.arange(length), last)
        queries.append(run.start + at)
        keys.append(of_row[np.minimum(np.arange(width), len(of_row) - 1)])
        positions.append(before + at)
    return RunGroup(*[sent(np.stack(part), device) for part in (queries, keys, positions)])


def _rows(x_NHD: Tensor, index_BT: Tensor) -> Tensor:
    """Gather rows, [B, T, H, D]. The gradient sums in a deterministic order, whatever the number of threads."""
    return x_NHD.flatten(1).index_select(0, index_BT.flatten()).view(*index_BT.shape, *x_NHD.shape[1:])
