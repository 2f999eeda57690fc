"""Per-token data in addition to ids: the source of each token, and the alternatives under a grammar.

With a grammar, the policy is a distribution over the tokens that the grammar allows at each position. The masks of
allowed tokens are stored with the action, so that the learner renormalizes over the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt


class Mark(IntEnum):
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
class Masks:
    """Allowed tokens at each position where a grammar restricted the choice.

    A mask is packed: token v is bit ``v % 8``, counted from the lowest, of byte ``v // 8``. Tokens beyond the end of a
    mask are not allowed. Equal masks are stored once.

    >>> Masks.of([4, 5, 9], [b"\\x06", b"\\x81", b"\\x06"]).which.tolist()
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
    def of(at: Sequence[int], masks: Sequence[bytes]) -> Masks:
        """Build the table from one mask per position."""
        table = {mask: number for number, mask in enumerate(dict.fromkeys(masks))}
        which = [table[mask] for mask in masks]
        return Masks(np.array(at, np.int32), np.array(which, np.int32), tuple(table))

    @staticmethod
    def joined(parts: Sequence[tuple[int, Masks]]) -> Masks | None:
        """Concatenate masks from consecutive texts; return None without masked positions.

        Args:
            parts: start of each text in tokens, and its masks.
        """
        at = [start + place for start, masks in parts for place in masks.at.tolist()]
        return Masks.of(at, [masks.table[number] for _, masks in parts for number in masks.which]) if at else None

    def rows(self, size: int) -> npt.NDArray[np.int32]:
        """Return the index into ``table`` for each token, -1 for unmasked tokens, [T].

        >>> Masks.of([1], [b"\\x06"]).rows(3).tolist()
        [-1, 0, -1]

        Args:
            size: number of tokens in the action, T.
        """
        found = np.full(size, -1, np.int32)
        found[self.at] = self.which
        return found


def only(token: int) -> bytes:
    """Return the packed mask for a single token.

    >>> only(9)
    b'\\x00\\x02'
    """
    return bytes(token // 8) + bytes([1 << token % 8])


def allows(mask: bytes, token: int) -> bool:
    """Return True if a mask allows a token.

    >>> [allows(b"\x06", token) for token in (0, 1, 2, 99)]
    [False, True, True, False]
    """
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def allows_one(mask: bytes) -> bool:
    """Return True if a mask allows exactly one token.

    >>> allows_one(only(9)), allows_one(b"\\x06")
    (True, False)
    """
    return int.from_bytes(mask, "little").bit_count() == 1
