"""Nim (Bouton 1901): players take pieces from one heap per turn, and the last piece wins.

The player to move can force a win if the exclusive or of the heap sizes is not 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import xor
from random import Random
from string import ascii_uppercase
from typing import Annotated, cast

from pydantic import Field

from marft_envs.textarena.games import LOSS_PAYOFF, WIN_PAYOFF, GameRules, MatchBoard

HEAP_PATTERN = re.compile(r"\b([A-Z]) (\d+)")
TAKE_PATTERN = re.compile(r"take (\d+) from ([A-Z])")


class Nim(GameRules):
    """Heaps with up to ``largest`` pieces; their order has no influence on a start's content."""

    heaps: Annotated[int, Field(ge=1, le=6)] = 2  # number of heaps
    largest: Annotated[int, Field(ge=1, le=30)] = 9  # maximum pieces in a heap

    def draw_start(self, random: Random) -> tuple[str, dict[str, object]]:
        """Draw the heap sizes."""
        heaps = [random.randint(1, self.largest) for _ in range(self.heaps)]
        return f"nim {sorted(heaps)}", {"heaps": heaps}

    def start_match(self, start: Mapping[str, object]) -> NimMatch:
        """Start a match."""
        return NimMatch(cast("Sequence[int]", start["heaps"]))

    def optimal_moves(self, text: str, options: Sequence[str]) -> tuple[str, ...]:
        """Return every move with exclusive or 0 afterwards, or else every legal move."""
        heaps = {name: int(size) for name, size in HEAP_PATTERN.findall(text)}
        winning = tuple(option for option in options if _xor_after(heaps, option) == 0)
        return winning or tuple(options)


class NimMatch(MatchBoard):
    """One match."""

    def __init__(self, heaps: Sequence[int]) -> None:
        super().__init__(Nim.players, Nim.cooperative)
        self.heaps, self.last_move = dict(zip(ascii_uppercase, heaps, strict=False)), ""

    def state_text(self, player: int) -> str:  # noqa: ARG002  nothing is hidden
        """Return the remaining heaps and the last move."""
        heaps = ", ".join(f"{name} {size}" for name, size in self.heaps.items() if size)
        return f"{self.last_move}Heaps: {heaps or 'none'}."

    def options(self) -> tuple[str, ...]:
        """Return the legal moves."""
        return tuple(f"take {n} from {name}" for name, size in self.heaps.items() for n in range(1, size + 1))

    def apply_move(self, move: str) -> None:
        """Take pieces from a heap."""
        taken_count, name = TAKE_PATTERN.findall(move)[0]
        self.heaps[name] -= int(taken_count)
        self.last_move = f"They {move}. "
        self.current_player = 1 - self.current_player
        if not any(self.heaps.values()):
            self.finish([LOSS_PAYOFF if player == self.current_player else WIN_PAYOFF for player in range(2)])


def _xor_after(heaps: Mapping[str, int], move: str) -> int:
    """Return the exclusive or of the heaps after a move."""
    taken_count, name = TAKE_PATTERN.findall(move)[0]
    return reduce(xor, [size - int(taken_count) if heap == name else size for heap, size in heaps.items()])
