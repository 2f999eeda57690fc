"""Prefix tree over rows: a layout for single computation of shared prefixes.

Rows are sorted by their ids, so each row shares a prefix with the previous row and adds the remaining tokens. These
tokens are contiguous and form a tree node (``TreeNode``). A node attends causally to itself and to everything before it
in its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from marft.common.types import TokenIds

Span = tuple[int, int]  # start and stop key index


@dataclass(slots=True, eq=False)
class TreeNode:
    """Tree node: tokens that a row adds to the previous rows."""

    start: int  # token index in the batch
    stop: int
    prefix_spans: tuple[Span, ...]  # key spans of the tokens before this node in its row, in order


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """Prefix tree over rows. Attention keys are the ``cached_keys`` cached keys, followed by the batch's own tokens.

    >>> rows = [np.array([5, 6, 7, 8]), np.array([5, 6, 9]), np.array([5, 6, 9, 4])]
    >>> forest = PrefixTree.from_rows(rows, ["planner"] * 3)
    >>> forest.ids.tolist(), [(run.start, run.stop, run.prefix_spans) for run in forest.nodes]
    ([5, 6, 7, 8, 9, 4], [(0, 4, ()), (4, 6, ((0, 2),))])
    >>> [places.tolist() for places in forest.token_indices]
    [[0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 5]]
    """

    ids: TokenIds  # [N] token ids of the batch
    positions: npt.NDArray[np.int64]  # [N] position of each token in its rows
    nodes: tuple[TreeNode, ...]
    token_indices: tuple[npt.NDArray[np.int64], ...]  # by row: key index of each token
    owners: tuple[str | None, ...]  # by node
    cached_keys: int  # number of cached keys

    @staticmethod
    def from_rows(
        rows: Sequence[TokenIds], owners: Sequence[str | None], cached_spans: Sequence[Span] = (), cached_keys: int = 0
    ) -> PrefixTree:
        """Build the prefix tree.

        Args:
            owners: owner (adapter) of each row; rows with different owners share nothing.
            cached_spans: span of cached keys for each row's first tokens. Each row has at least one more token.
            cached_keys: number of cached keys.
        """
        cached_spans = cached_spans or [(0, 0)] * len(rows)
        groups = [(owner or "", *span) for owner, span in zip(owners, cached_spans, strict=True)]
        order = sorted(range(len(rows)), key=lambda row: (groups[row], rows[row].tobytes()))
        nodes: list[TreeNode] = []
        node_owners: list[str | None] = []
        ids: list[TokenIds] = []
        positions: list[npt.NDArray[np.int64]] = []
        token_indices: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)] * len(rows)
        path: list[Span] = []
        previous_row = -1
        size = 0
        for row in order:
            first, last = cached_spans[row]
            if previous_row >= 0 and groups[previous_row] == groups[row]:
                shared, previous_indices = (
                    common_prefix_length(rows[previous_row], rows[row]),
                    token_indices[previous_row],
                )
            else:
                shared, previous_indices, path = last - first, np.arange(first, last), [cached_spans[row]]
            added = len(rows[row]) - shared
            if (
                added
                and nodes
                and previous_row >= 0
                and previous_indices is token_indices[previous_row]
                and shared == len(rows[previous_row])
            ):
                nodes[-1].stop += added
                path[-1] = (path[-1][0], cached_keys + size + added)
            elif added:
                path = _truncate_path(path, shared)
                nodes.append(TreeNode(size, size + added, tuple(path)))
                node_owners.append(owners[row])
                path.append((cached_keys + size, cached_keys + size + added))
            token_indices[row] = np.concatenate([previous_indices[:shared], cached_keys + size + np.arange(added)])
            ids.append(rows[row][shared:])
            positions.append(np.arange(shared, len(rows[row])))
            size, previous_row = size + added, row
        return PrefixTree(
            np.concatenate(ids),
            np.concatenate(positions),
            tuple(nodes),
            tuple(token_indices),
            tuple(node_owners),
            cached_keys,
        )

    def owner_spans(self) -> list[tuple[str | None, int, int]]:
        """Return contiguous ``(owner, start, stop)`` spans over the batch."""
        spans: list[tuple[str | None, int, int]] = []
        for owner, node in zip(self.owners, self.nodes, strict=True):
            if spans and spans[-1][0] == owner:
                spans[-1] = (owner, spans[-1][1], node.stop)
            else:
                spans.append((owner, node.start, node.stop))
        return spans


def common_prefix_length(first: TokenIds, second: TokenIds) -> int:
    """Return the length of the common prefix, in tokens.

    >>> common_prefix_length(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    length = min(len(first), len(second))
    differ = first[:length] != second[:length]
    return int(differ.argmax()) if differ.any() else length


def _truncate_path(path: Sequence[Span], length: int) -> list[Span]:
    """Return the spans for the first ``length`` keys on a path."""
    spans: list[Span] = []
    for start, stop in path:
        num_keys = min(stop - start, length)
        if num_keys:
            spans.append((start, start + num_keys))
        length -= num_keys
    return spans
