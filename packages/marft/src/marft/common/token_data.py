"""Data of an action's tokens in addition to ids: contexts, source of each token, and alternatives under a grammar.

Nearly every action has one segment of tokens, sampled after the prompt. If a chat template changes earlier parts of a
chat, nothing can be appended to its ids. The chat is then rendered again, and the next sampled tokens begin a new
segment of the same action.

With a grammar, the policy is a distribution over the tokens that the grammar allows at each position. The masks of
allowed tokens are stored with the action, so that the learner renormalizes over the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt


class TokenSource(IntEnum):
    """Source of a token in an action; only sampled tokens have log-probs and are trained."""

    SAMPLED = 0
    TOOL = 1
    TEAMMATE = 2
    FORCED = 3  # the agent's own token, at a position where the grammar allowed no other


@dataclass(frozen=True, slots=True)
class Grammar:
    """Format constraint on a text: JSON schema, regular expression, or grammar in Lark's format.

    >>> Grammar("regex", "yes|no").kind
    'regex'
    """

    kind: Literal["json", "regex", "lark"]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class GrammarMasks:
    """Allowed tokens at each position where a grammar restricted the choice.

    A mask is packed: token v is bit ``v % 8``, counted from the lowest, of byte ``v // 8``. Tokens beyond the end of a
    mask are not allowed. Equal masks are stored once.

    >>> GrammarMasks.from_masks([4, 5, 9], [b"\\x06", b"\\x81", b"\\x06"]).which.tolist()
    [0, 1, 0]

    Args:
        at: positions in an action's tokens, ascending, [M].
        which: index into ``table`` for each position, [M].
        table: distinct packed masks.
    """

    at: npt.NDArray[np.int32]  # [M]
    which: npt.NDArray[np.int32]  # [M]
    table: tuple[bytes, ...]

    @staticmethod
    def from_masks(at: Sequence[int], masks: Sequence[bytes]) -> GrammarMasks:
        """Build the table from one mask per position."""
        table = {mask: number for number, mask in enumerate(dict.fromkeys(masks))}
        which = [table[mask] for mask in masks]
        return GrammarMasks(np.array(at, np.int32), np.array(which, np.int32), tuple(table))

    @staticmethod
    def concatenate(parts: Sequence[tuple[int, GrammarMasks]]) -> GrammarMasks | None:
        """Concatenate masks from consecutive texts; return None without masked positions.

        Args:
            parts: start of each text in tokens, and its masks.
        """
        at = [start + place for start, masks in parts for place in masks.at.tolist()]
        if not at:
            return None
        return GrammarMasks.from_masks(at, [masks.table[number] for _, masks in parts for number in masks.which])

    def mask_indices(self, size: int) -> npt.NDArray[np.int32]:
        """Return the index into ``table`` for each token, -1 for unmasked tokens, [T].

        >>> GrammarMasks.from_masks([1], [b"\\x06"]).mask_indices(3).tolist()
        [-1, 0, -1]

        Args:
            size: number of tokens in the action, T.
        """
        indices = np.full(size, -1, np.int32)
        indices[self.at] = self.which
        return indices


NO_EXPERT = -1  # no record: the router selects the expert again
ExpertTable = npt.NDArray[np.int16]  # [S, L, K]


@dataclass(frozen=True, slots=True, eq=False)
class RoutedExperts:
    """Experts that routers selected for each token of a row: K experts in each of L layers.

    The tokens are those of the row's input: context and tokens, without the last token.

    >>> RoutedExperts.from_table(np.ones((5, 2, 4), np.int16)).table(6)[4:, 0].tolist()
    [[1, 1, 1, 1], [-1, -1, -1, -1]]

    Args:
        flat: expert by token, layer and rank, [S·L·K].
        layers: number of layers, L.
        top_k: number of experts for each token, K.
    """

    flat: npt.NDArray[np.int16]  # [S·L·K]
    layers: int
    top_k: int

    @staticmethod
    def from_table(experts_SLK: npt.NDArray[np.integer]) -> RoutedExperts:
        """Return the record for a table."""
        return RoutedExperts(experts_SLK.astype(np.int16).flatten(), *experts_SLK.shape[1:])

    def table(self, size: int) -> ExpertTable:
        """Return the experts of the first ``size`` tokens, [size, L, K]; -1 without a record."""
        table = self.flat.reshape(-1, self.layers, self.top_k)[:size]
        missing = np.full((size - len(table), self.layers, self.top_k), NO_EXPERT, np.int16)
        return np.concatenate([table, missing])

    @staticmethod
    def merge(records: Sequence[RoutedExperts], size: int) -> RoutedExperts:
        """Merge records of prefixes of a row with ``size`` tokens: the first record of each token counts.

        A token was sampled, and its predecessors were read, with the first record.

        >>> first, second = (RoutedExperts.from_table(np.full((s, 1, 1), s)) for s in (2, 3))
        >>> RoutedExperts.merge([first, second], 4).flat.tolist()
        [2, 2, 3, -1]
        """
        table = records[0].table(size)
        for record in records[1:]:
            table = np.where(table == NO_EXPERT, record.table(size), table)
        return RoutedExperts.from_table(table)


def single_token_mask(token: int) -> bytes:
    """Return the packed mask for a single token.

    >>> single_token_mask(9)
    b'\\x00\\x02'
    """
    return bytes(token // 8) + bytes([1 << token % 8])


def allows_token(mask: bytes, token: int) -> bool:
    """Return True if a mask allows a token.

    >>> [allows_token(b"\x06", token) for token in (0, 1, 2, 99)]
    [False, True, True, False]
    """
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def allows_single_token(mask: bytes) -> bool:
    """Return True if a mask allows exactly one token.

    >>> allows_single_token(single_token_mask(9)), allows_single_token(b"\\x06")
    (True, False)
    """
    return int.from_bytes(mask, "little").bit_count() == 1


def common_prefix_length(first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]) -> int:
    """Return the length of the common prefix, in tokens.

    >>> common_prefix_length(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    length = min(len(first), len(second))
    differ = first[:length] != second[:length]
    return int(differ.argmax()) if differ.any() else length


@dataclass(frozen=True, slots=True, eq=False)
class PromptReset:
    """Point where an action continued from a newly rendered chat instead of its own tokens.

    Args:
        at: index of the first token that was sampled after ``context``.
        context: ids of the rendered chat, [C].
        turns: number of the action's turns in the context, tool replies included.
        reason: human-readable cause.

    >>> PromptReset(at=5, context=np.array([7, 8, 9], np.int32), turns=1, reason="its chat template drops thoughts").at
    5
    """

    at: int
    context: npt.NDArray[np.int32]  # [C]
    turns: int
    reason: str


class Segment(NamedTuple):
    """Tokens ``start`` to ``stop`` in an action, sampled after ``context``, [C]."""

    context: npt.NDArray[np.int32]  # [C]
    start: int
    stop: int


def split_segments(prompt: npt.NDArray[np.int32], size: int, resets: Sequence[PromptReset]) -> tuple[Segment, ...]:
    """Return the segments for an action with ``size`` tokens: one more than restarts.

    >>> [(s.start, s.stop) for s in split_segments(np.array([1]), 9, [PromptReset(5, np.array([1]), 1, "")])]
    [(0, 5), (5, 9)]

    Args:
        prompt: ids before the first segment, [P].
    """
    stops = [*(reset.at for reset in resets), size]
    starts = [(prompt, 0), *((reset.context, reset.at) for reset in resets)]
    return tuple(Segment(context, start, stop) for (context, start), stop in zip(starts, stops, strict=True))
