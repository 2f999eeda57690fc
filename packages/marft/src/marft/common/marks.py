"""What is known of an action's tokens beside their ids: where each came from, and what else it could have been.

Where a grammar says what a text must be, the policy is the one over the tokens that it allows for at each place. Which
those were is kept beside the tokens, so that whoever learns renormalises over the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt


class Mark(IntEnum):
    """Where a token of an action came from; only sampled tokens have log-probs and are trained."""

    SAMPLED = 0
    TOOL = 1
    TEAMMATE = 2
    FORCED = 3  # the agent's own, at a place where a grammar allowed for no other


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must be: JSON of a schema, or what a regular expression or a grammar in Lark's format describes.

    >>> Grammar("regex", "yes|no").kind
    'regex'
    """

    kind: Literal["json", "regex", "lark"]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """The tokens that a grammar allowed for, at each place where it allowed for some alone.

    A mask is packed: token v is bit ``v % 8``, counted from the lowest, of byte ``v // 8``; tokens beyond its end are
    not allowed. Equal masks are kept once.

    >>> Masks.of([4, 5, 9], [b"\\x06", b"\\x81", b"\\x06"]).which.tolist()
    [0, 1, 0]

    Args:
        at: places in an action's tokens, ascending.
        which: of each of them, its mask's in ``table``.
    """

    at: npt.NDArray[np.int32]  # [M]
    which: npt.NDArray[np.int32]  # [M]
    table: tuple[bytes, ...]

    @staticmethod
    def of(at: Sequence[int], masks: Sequence[bytes]) -> Masks:
        """The mask of each place."""
        table = {mask: number for number, mask in enumerate(dict.fromkeys(masks))}
        which = [table[mask] for mask in masks]
        return Masks(np.array(at, np.int32), np.array(which, np.int32), tuple(table))

    @staticmethod
    def joined(parts: Sequence[tuple[int, Masks]]) -> Masks | None:
        """Those of texts one after the other; None where there are none.

        Args:
            parts: where each text begins, and its masks.
        """
        at = [start + place for start, masks in parts for place in masks.at.tolist()]
        return Masks.of(at, [masks.table[number] for _, masks in parts for number in masks.which]) if at else None

    def rows(self, size: int) -> npt.NDArray[np.int32]:
        """Of each token of an action of ``size`` the mask in ``table``, -1 where there is none, [T].

        >>> Masks.of([1], [b"\\x06"]).rows(3).tolist()
        [-1, 0, -1]
        """
        found = np.full(size, -1, np.int32)
        found[self.at] = self.which
        return found


def only(token: int) -> bytes:
    """The mask that allows for one token.

    >>> only(9)
    b'\\x00\\x02'
    """
    return bytes(token // 8) + bytes([1 << token % 8])


def allows(mask: bytes, token: int) -> bool:
    """Whether a mask allows for a token.

    >>> [allows(b"\x06", token) for token in (0, 1, 2, 99)]
    [False, True, True, False]
    """
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def allows_one(mask: bytes) -> bool:
    """Whether a mask allows for no more than one token.

    >>> allows_one(only(9)), allows_one(b"\\x06")
    (True, False)
    """
    return int.from_bytes(mask, "little").bit_count() == 1
