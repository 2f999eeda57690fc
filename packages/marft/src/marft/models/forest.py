"""Prefix tree over rows: a layout for single computation of shared prefixes.

Rows are sorted by their ids, so each row shares a prefix with the previous row and adds the remaining tokens. These
tokens are contiguous and form a tree node (``Run``). A node attends causally to itself and to everything before it in
its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from marft.common.types import TokenIds

Span = tuple[int, int]  # start and stop key index


@dataclass(slots=True, eq=False)
class Run:
    """Tree node: tokens that a row adds to the previous rows."""

    start: int  # token index in the batch
    stop: int
    seen: tuple[Span, ...]  # key spans of the tokens before this node in its row, in order


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Prefix tree over rows. Attention keys are the ``known`` cached keys, followed by the batch's own tokens.

    >>> rows = [np.array([5, 6, 7, 8]), np.array([5, 6, 9]), np.array([5, 6, 9, 4])]
    >>> forest = Forest.of(rows, ["planner"] * 3)
    >>> forest.ids.tolist(), [(run.start, run.stop, run.seen) for run in forest.runs]
    ([5, 6, 7, 8, 9, 4], [(0, 4, ()), (4, 6, ((0, 2),))])
    >>> [places.tolist() for places in forest.places]
    [[0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 5]]
    """

    ids: TokenIds  # [N] token ids of the batch
    positions: npt.NDArray[np.int64]  # [N] position of each token in its rows
    runs: tuple[Run, ...]
    places: tuple[npt.NDArray[np.int64], ...]  # by row: key index of each token
    owners: tuple[str | None, ...]  # by node
    known: int  # number of cached keys

    @staticmethod
    def of(rows: Sequence[TokenIds], owners: Sequence[str | None], known: Sequence[Span] = (), keys: int = 0) -> Forest:
        """Build the prefix tree.

        Args:
            owners: owner (adapter) of each row; rows with different owners share nothing.
            known: span of cached keys for each row's first tokens. Each row has at least one more token.
            keys: number of cached keys.
        """
        known = known or [(0, 0)] * len(rows)
        groups = [(owner or "", *span) for owner, span in zip(owners, known, strict=True)]
        order = sorted(range(len(rows)), key=lambda row: (groups[row], rows[row].tobytes()))
        runs: list[Run] = []
        of_runs: list[str | None] = []
        ids: list[TokenIds] = []
        positions: list[npt.NDArray[np.int64]] = []
        places: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)] * len(rows)
        path: list[Span] = []
        before = -1
        size = 0
        for row in order:
            first, last = known[row]
            if before >= 0 and groups[before] == groups[row]:
                shared, above = common(rows[before], rows[row]), places[before]
            else:
                shared, above, path = last - first, np.arange(first, last), [known[row]]
            added = len(rows[row]) - shared
            if added and runs and before >= 0 and above is places[before] and shared == len(rows[before]):
                runs[-1].stop += added
                path[-1] = (path[-1][0], keys + size + added)
            elif added:
                path = _cut(path, shared)
                runs.append(Run(size, size + added, tuple(path)))
                of_runs.append(owners[row])
                path.append((keys + size, keys + size + added))
            places[row] = np.concatenate([above[:shared], keys + size + np.arange(added)])
            ids.append(rows[row][shared:])
            positions.append(np.arange(shared, len(rows[row])))
            size, before = size + added, row
        return Forest(
            np.concatenate(ids), np.concatenate(positions), tuple(runs), tuple(places), tuple(of_runs), keys
        )  # fmt: skip

    def stretches(self) -> list[tuple[str | None, int, int]]:
        """Return contiguous ``(owner, start, stop)`` spans over the batch."""
        found: list[tuple[str | None, int, int]] = []
        for owner, run in zip(self.owners, self.runs, strict=True):
            if found and found[-1][0] == owner:
                found[-1] = (owner, found[-1][1], run.stop)
            else:
                found.append((owner, run.start, run.stop))
        return found


def common(one: TokenIds, other: TokenIds) -> int:
    """Return the length of the common prefix, in tokens.

    >>> common(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length


def _cut(path: Sequence[Span], length: int) -> list[Span]:
    """Return the spans for the first ``length`` keys on a path."""
    kept: list[Span] = []
    for start, stop in path:
        taken = min(stop - start, length)
        if taken:
            kept.append((start, start + taken))
        length -= taken
    return kept
