"""Kuhn poker (Kuhn 1950): three cards, one each, one bet. The smallest poker: bluffing pays in it, and what perfect
play is worth is known.

Both put one chip in. A player may check or bet one chip more; who is bet against calls or folds. The higher card wins
what is in the pot. What a match pays is chips over 2, so that it is from -1 to 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import cast

from marft_envs.textarena.games import Board, Rules

CARDS = "JQK"  # the lowest first
VALUE = -1.0 / 36.0  # of the game to who begins, as it is paid here: -1/18 chips
CHIPS = 2.0  # that can be lost at most
HOLD = re.compile(r"You hold ([JQK])\.")
SAID = re.compile(r"(You|They) (check|bet)\.")
# the chance to bet or call of one equilibrium (that in which who begins bets every king), by card and what was done
EQUILIBRIUM: Mapping[tuple[str, str], float] = {
    ("J", ""): 1 / 3, ("Q", ""): 0.0, ("K", ""): 1.0,
    ("J", "c"): 1 / 3, ("Q", "c"): 0.0, ("K", "c"): 1.0,
    ("J", "b"): 0.0, ("Q", "b"): 1 / 3, ("K", "b"): 1.0,
    ("J", "cb"): 0.0, ("Q", "cb"): 2 / 3, ("K", "cb"): 1.0,
}  # fmt: skip
SOMETIMES = {("K", "")}  # where another equilibrium does the other thing, too


class Kuhn(Rules):
    """One hand a match: what is drawn is the deal."""

    def draw(self, random: Random) -> tuple[str, dict[str, object]]:
        """A deal. There are six, and chance is part of the game: a task is a draw, known by its number."""
        return f"kuhn {random.getrandbits(62)}", {"cards": "".join(random.sample(CARDS, 2))}

    def begin(self, start: Mapping[str, object]) -> Hand:
        return Hand(cast("str", start["cards"]))

    def sound(self, shown: str, options: Sequence[str]) -> tuple[str, ...]:
        """What some equilibrium does with a chance above 0."""
        state = known(shown)
        passive, active = options
        if state in SOMETIMES:
            return passive, active
        chance = EQUILIBRIUM[state]
        return (passive,) if chance == 0 else (active,) if chance == 1 else (passive, active)

    def perfect(self, shown: str, options: Sequence[str], random: Random) -> str:
        """An equilibrium's mixture."""
        return options[int(random.random() < EQUILIBRIUM[known(shown)])]


class Hand(Board):
    """One match."""

    def __init__(self, cards: str) -> None:
        super().__init__(Kuhn.players, Kuhn.cooperative)
        self.cards, self.done = cards, ""

    def told(self, player: int) -> str:
        """One's own card, and what was done."""
        said = "".join(
            f" {'You' if number % 2 == player else 'They'} {'check' if move == 'c' else 'bet'}."
            for number, move in enumerate(self.done)
        )
        return f"You hold {self.cards[player]}.{said}"

    def options(self) -> tuple[str, ...]:
        return ("fold", "call") if self.done.endswith("b") else ("check", "bet")

    def make(self, move: str) -> None:
        self.done += move[0]
        self.mover = 1 - self.mover
        chips = won(self.cards, self.done)
        if chips is not None:
            self.end((chips / CHIPS, -chips / CHIPS))


def known(shown: str) -> tuple[str, str]:
    """What a player knows, as its card and what was done: c checked, b bet."""
    return HOLD.findall(shown)[0], "".join(move[0] for _, move in SAID.findall(shown))


def won(cards: str, done: str) -> float | None:
    """Chips that who began has won once all was done; None while a move is still to come.

    >>> won("QJ", "cc"), won("QJ", "bc"), won("QK", "cbf"), won("QK", "cb")
    (1.0, 2.0, -1.0, None)
    """
    if done in ("", "c", "b", "cb"):
        return None
    if done.endswith("f"):
        return 1.0 if len(done) == 2 else -1.0
    stake = 1.0 if done == "cc" else 2.0
    return stake if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -stake
