"""Packed rows: concatenated token rows without padding, the input for every MARFT forward.

Rows with a common prefix can be packed as a prefix tree, in which the prefix is computed once. Rows are then sorted by
their ids, so each row shares a prefix with the previous row and adds the remaining tokens. These tokens are contiguous
and form a tree node (:class:`TreeNode`). A node attends causally to itself and to everything before it in its row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marft.common.token_data import NO_EXPERT, ExpertTable, common_prefix_length
from marft.common.types import TokenIds
from marft.models.devices import send_together, to_device

Span = tuple[int, int]  # start and stop key index
T = TypeVar("T")


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
    experts: ExpertTable | None = None  # [N, L, K] replayed experts

    @staticmethod
    def from_replayed_rows(
        rows: Sequence[TokenIds], owners: Sequence[str | None], experts: Sequence[ExpertTable]
    ) -> PrefixTree:
        """Build the prefix tree of rows with replayed experts; see :func:`replay_keys`.

        Args:
            owners: as in :meth:`from_rows`.
            experts: experts of each row, [length, L, K]; empty without replay.
        """
        if not experts:
            return PrefixTree.from_rows(rows, owners)
        keys, first = replay_keys(rows, experts)
        tree = PrefixTree.from_rows(keys, owners)
        tokens = np.concatenate(rows)[first]
        return replace(tree, ids=tokens[tree.ids], experts=np.concatenate(experts)[first][tree.ids])

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
                shared = common_prefix_length(rows[previous_row], rows[row])
                previous_indices = token_indices[previous_row]
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


def replay_keys(
    rows: Sequence[TokenIds], experts: Sequence[ExpertTable]
) -> tuple[list[TokenIds], npt.NDArray[np.int64]]:
    """Return rows of keys, equal for tokens with the same id and the same replayed experts.

    Tokens with different experts have different states, so their rows share no prefix.

    >>> table = np.array([[[0]], [[1]], [[1]]], np.int16)
    >>> [keys.tolist() for keys in replay_keys([np.array([5, 6, 6]), np.array([5])], [table, table[1:2]])[0]]
    [[0, 1, 1], [2]]

    Returns:
        keys of each row, and the index in the concatenated rows of the first token with each key.
    """
    numbers: dict[tuple[int, bytes], int] = {}
    tokens = zip(np.concatenate(rows).tolist(), np.concatenate(experts), strict=True)
    flat = np.array([numbers.setdefault((token, selected.tobytes()), len(numbers)) for token, selected in tokens])
    first = np.unique(flat, return_index=True)[1]
    ends = np.cumsum([len(row) for row in rows])[:-1]
    return np.split(flat.astype(np.int32), ends), first


def _truncate_path(path: Sequence[Span], length: int) -> list[Span]:
    """Return the spans for the first ``length`` keys on a path."""
    spans: list[Span] = []
    for start, stop in path:
        num_keys = min(stop - start, length)
        if num_keys:
            spans.append((start, start + num_keys))
        length -= num_keys
    return spans


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Packed rows of tokens, with contiguous spans for the policies.

    >>> rows = PackedRows.from_rows([np.array([5, 6, 7]), np.array([8, 9])], ["planner", "coder"], torch.device("cpu"))
    >>> rows.ids.tolist(), rows.positions.tolist(), rows.lengths, rows.spans
    ([5, 6, 7, 8, 9], [0, 1, 2, 0, 1], [3, 2], [('planner', 0, 3), ('coder', 3, 5)])
    """

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    lengths: list[int]  # [B], sums to N, or to less in a padded batch
    spans: list[tuple[str | None, int, int]]
    fixed_size: bool = False  # whether the batch is padded to a fixed size
    tree: PrefixTree | None = None  # set if shared prefixes are stored once; B then counts the tree's nodes
    experts: Tensor | None = None  # [N, L, K] replayed experts; -1: selected by the router

    @staticmethod
    def from_rows(
        rows: Sequence[TokenIds],
        policies: Sequence[str | None],
        device: torch.device,
        size: int = 0,
        experts: Sequence[ExpertTable] = (),
    ) -> PackedRows:
        """Pack ``rows`` in the given order. A policy may occur several times, at the cost of an additional span.

        Args:
            size: minimum number of tokens, reached by padding. In batches with a fixed size, a row's result is bitwise
                independent of the other rows. This requires kernels that treat all rows of a product alike. It does
                not hold for experts, which multiply as many tokens together as are routed to them.
            experts: replayed experts of each row, [length, L, K]; empty without replay.
        """
        lengths = [len(row) for row in rows]
        spans: list[tuple[str | None, int, int]] = []
        start = 0
        for policy, length in zip(policies, lengths, strict=True):
            if spans and spans[-1][0] == policy:
                spans[-1] = (policy, spans[-1][1], start + length)
            else:
                spans.append((policy, start, start + length))
            start += length
        padding = np.zeros(max(0, size - start), np.int64)
        columns = np.concatenate([*rows, padding]), np.concatenate([*map(np.arange, lengths), padding])
        ids, positions = send_together([column.astype(np.int64) for column in columns], device)
        replayed = _pad_experts(np.concatenate(experts), len(ids), device) if experts else None
        return PackedRows(ids, positions, lengths, spans, size > 0, experts=replayed)

    @staticmethod
    def from_tree(tree: PrefixTree, device: torch.device, size: int = 0) -> PackedRows:
        """Pack rows with shared prefixes; ``tree.token_indices`` gives the indices of their tokens."""
        padding = np.zeros(max(0, size - len(tree.ids)), np.int64)
        columns = np.concatenate([tree.ids, padding]).astype(np.int64), np.concatenate([tree.positions, padding])
        ids, positions = send_together(columns, device)
        lengths = [node.stop - node.start for node in tree.nodes]
        replayed = None if tree.experts is None else _pad_experts(tree.experts, len(ids), device)
        return PackedRows(ids, positions, lengths, tree.owner_spans(), size > 0, tree, replayed)

    def token_indices(self) -> Sequence[np.ndarray]:
        """Return each row's token indices in the packed batch, one array [length] per row."""
        if self.tree is not None:
            return self.tree.token_indices
        return [start + np.arange(length) for start, length in zip(self.starts(), self.lengths, strict=True)]

    def starts(self) -> list[int]:
        """Return the start index for each row in the packed batch, [B]."""
        return [0, *np.cumsum(self.lengths)[:-1].tolist()]

    def policies(self) -> list[str | None]:
        """Return the policy for each row, [B]."""
        spans = iter(self.spans)
        policy, _, stop = next(spans)
        policies = []
        for start in self.starts():
            while start >= stop:
                policy, _, stop = next(spans)
            policies.append(policy)
        return policies


def _pad_experts(experts_NLK: ExpertTable, size: int, device: torch.device) -> Tensor:
    padding = np.full((size - len(experts_NLK), *experts_NLK.shape[1:]), NO_EXPERT, np.int16)
    return to_device(np.concatenate([experts_NLK, padding]), device)


def split_batches(items: Sequence[T], length: Callable[[T], int], limit: int) -> list[list[T]]:
    """Group consecutive items into batches with a total length up to ``limit``; a longer item forms its own batch.

    >>> split_batches([3, 4, 9, 1], lambda n: n, 8)
    [[3, 4], [9], [1]]
    """
    batches: list[list[T]] = []
    total_length = 0
    for item in items:
        if not batches or total_length + length(item) > limit:
            batches.append([])
            total_length = 0
        batches[-1].append(item)
        total_length += length(item)
    return batches
