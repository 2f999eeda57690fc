"""Segments of a prefix tree, for layers with a state: each segment starts from the state at the end of its parent.

A segment is a part of a tree node without a branch or a row's end inside. Segments of one depth do not depend on each
other, so those of similar length are padded and computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from marft.models.attention import padded_length
from marft.models.devices import to_device
from marft.models.packed_rows import PrefixTree


@dataclass(frozen=True, slots=True)
class Segment:
    """Contiguous tokens of a batch, after the tokens of the parent segment in the same rows."""

    start: int
    stop: int
    parent: int  # number of the parent segment; -1 at the start of a row
    depth: int


def split_segments(tree: PrefixTree) -> list[Segment]:
    """Split a tree without cached keys into segments, parents first.

    >>> rows = [np.array([5, 6, 7, 8]), np.array([5, 6, 9]), np.array([5, 6, 7])]
    >>> [(part.start, part.stop, part.parent) for part in split_segments(PrefixTree.from_rows(rows, [None] * 3))]
    [(0, 2, -1), (2, 3, 0), (3, 4, 1), (4, 5, 0)]
    """
    assert not tree.cached_keys, "states of cached prefixes are unknown"
    branches = {node.prefix_spans[-1][1] for node in tree.nodes if node.prefix_spans}
    cuts = np.array(sorted(branches | {int(indices[-1]) + 1 for indices in tree.token_indices}))
    segments: list[Segment] = []
    ends: dict[int, int] = {}  # number of the segment that ends at a token index
    for node in tree.nodes:
        parent = ends[node.prefix_spans[-1][1]] if node.prefix_spans else -1
        inside = cuts[np.searchsorted(cuts, node.start, "right") : np.searchsorted(cuts, node.stop)]
        for start, stop in pairwise([node.start, *inside.tolist(), node.stop]):
            depth = segments[parent].depth + 1 if parent >= 0 else 0
            segments.append(Segment(start, stop, parent, depth))
            parent = ends[stop] = len(segments) - 1
    return segments


@dataclass(frozen=True, slots=True, eq=False)
class SegmentGroup:
    """Segments of one depth, padded to a common length by repeating their last token."""

    numbers: list[int]
    tokens: Tensor  # [B, L] token indices in the batch
    is_token: Tensor  # [B, L]
    parents: Tensor | None  # [B] positions of the parents among the computed segments; None at the start of rows


class TreeSegments:
    """Segments of a prefix tree in groups, from the roots to the leaves.

    Groups are computed one after the other, so segments are numbered in two ways: by their number in the tree (``#``),
    and by their position among the computed segments (``@``). Rows ``5 6 7 8``, ``5 6 9`` and ``5 6 7``::

        tokens 0 1    2     3
               5 6 ── 7 ─── 8     #0 @0 ── #1 @1 ── #2 @3
                 └─── 9                └── #3 @2
                      4

    >>> rows = [np.array([5, 6, 7, 8]), np.array([5, 6, 9]), np.array([5, 6, 7])]
    >>> segments = TreeSegments(PrefixTree.from_rows(rows, [None] * 3), torch.device("cpu"))
    >>> [group.numbers for group in segments.groups], segments.positions, segments.row_ends.tolist()
    ([[0], [1, 3], [2]], {0: 0, 1: 1, 3: 2, 2: 3}, [3, 2, 1])
    >>> segments.padded_indices.tolist()  # every segment is padded to 16 tokens
    [0, 1, 16, 48, 32]

    Attributes:
        positions: position of each segment among the computed segments, by number.
        row_ends: positions of the segments that end the rows, [rows].
        padded_indices: index of each token among the padded tokens of all groups, [N].
    """

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self.tree, self.segments = tree, split_segments(tree)
        by_size: dict[tuple[int, int], list[int]] = {}
        for number, segment in enumerate(self.segments):
            by_size.setdefault((segment.depth, padded_length(segment.stop - segment.start)), []).append(number)
        self.positions: dict[int, int] = {}
        self.groups: list[SegmentGroup] = []
        padded_indices = np.zeros(len(tree.ids), np.int64)
        offset = 0
        for (depth, length), numbers in sorted(by_size.items()):
            starts, stops = np.array([(self.segments[n].start, self.segments[n].stop) for n in numbers]).T[:, :, None]
            columns = starts + np.arange(length)
            inside = columns < stops
            padded_indices[columns[inside]] = offset + np.flatnonzero(inside)
            offset += columns.size
            parents = np.array([self.positions.get(self.segments[n].parent, -1) for n in numbers])
            self.positions.update({number: len(self.positions) + at for at, number in enumerate(numbers)})
            tokens, is_token = (to_device(array, device) for array in (np.minimum(columns, stops - 1), inside))
            self.groups.append(SegmentGroup(numbers, tokens, is_token, to_device(parents, device) if depth else None))
        self.padded_indices = to_device(padded_indices, device)
        ends = {segment.stop: number for number, segment in enumerate(self.segments)}
        last = [self.positions[ends[int(indices[-1]) + 1]] for indices in tree.token_indices]
        self.row_ends = to_device(np.array(last), device)
        self._contexts: dict[int, list[Tensor]] = {}  # by width

    def convolve(self, function: Callable[[Tensor], Tensor], x_NC: Tensor, width: int) -> Tensor:
        """Apply a causal function of ``width`` tokens to every row, [N, C]; it takes and returns rows [B, T, C]."""
        parts = []
        for group, context in zip(self.groups, self._find_contexts(width, x_NC.device), strict=True):
            before = _gather(x_NC, context.clamp_min(0)) * (context >= 0)[..., None]
            parts.append(function(torch.cat([before, _gather(x_NC, group.tokens)], 1))[:, width - 1 :])
        return self._pack(parts, len(x_NC))

    def scan(
        self, function: Callable[..., tuple[Tensor, Tensor]], masked: int, *packed: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Apply a function with a state to every row; return its output, [N, …], and the final states of the segments.

        The states are in several parts, in the order of ``positions``.

        Args:
            function: function of an initial state (None: empty) and of padded rows [B, T, …] to output and final state.
            masked: number of leading inputs that are 0 in padding.
            packed: inputs of the function, [N, …] each.
        """
        parts, states = [], list[Tensor]()
        for group in self.groups:
            inputs = [_gather(x, group.tokens) for x in packed]
            inputs[:masked] = [
                x.masked_fill(~group.is_token.view(*group.is_token.shape, *[1] * (x.dim() - 2)), 0)
                for x in inputs[:masked]
            ]
            initial = None if group.parents is None else torch.cat(states).index_select(0, group.parents)
            out, state = function(initial, *inputs)
            parts.append(out)
            states.append(state)
        return self._pack(parts, len(packed[0])), states

    def _pack(self, parts: Sequence[Tensor], tokens: int) -> Tensor:
        """Return padded rows as packed tokens, [N, …], with zeros for tokens outside the tree."""
        out = torch.cat([part.flatten(0, 1) for part in parts]).index_select(0, self.padded_indices)
        padding = tokens - len(out)
        return torch.cat([out, out.new_zeros(padding, *out.shape[1:])]) if padding else out

    def _find_contexts(self, width: int, device: torch.device) -> list[Tensor]:
        """Return the indices of the ``width - 1`` tokens before each segment, [B, width - 1] by group; -1 for none."""
        if width not in self._contexts:
            self._contexts[width] = [
                to_device(np.array([self._tokens_before(n, width - 1) for n in group.numbers]), device)
                for group in self.groups
            ]
        return self._contexts[width]

    def _tokens_before(self, number: int, count: int) -> list[int]:
        before = [token for _, token in zip(range(count), self._walk_back(self.segments[number].parent), strict=False)]
        return [-1] * (count - len(before)) + before[::-1]

    def _walk_back(self, number: int) -> Iterator[int]:
        """Yield the token indices of a segment and its ancestors, from the last token on."""
        while number >= 0:
            segment = self.segments[number]
            yield from range(segment.stop - 1, segment.start - 1, -1)
            number = segment.parent


def _gather(x: Tensor, index_BT: Tensor) -> Tensor:
    return x.index_select(0, index_BT.flatten()).view(*index_BT.shape, *x.shape[1:])
