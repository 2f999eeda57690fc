"""Kuhn poker (Kuhn 1950): three cards, one per player, with a single bet.

It is the smallest poker game in which bluffing pays, and the value of perfect play is known.

Both players put one chip in. A player may check, or bet one more chip. After a bet, the other player calls or
folds. The higher card wins the pot. The payoff is chips divided by 2, so it lies between −1 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import cast

from marft_envs.textarena.games import Board, Rules

CARDS = "JQK"  # lowest first
VALUE = -1.0 / 36.0  # value of the game for the first player, as a payoff: −1/18 chips
CHIPS = 2.0  # maximum loss of a player, in chips
HOLD = re.compile(r"You hold ([JQK])\.")
SAID = re.compile(r"(You|They) (check|bet)\.")
# probability of bet or call in one equilibrium (the first player bets every king), by card and history
EQUILIBRIUM: Mapping[tuple[str, str], float] = {
    ("J", ""): 1 / 3, ("Q", ""): 0.0, ("K", ""): 1.0,
    ("J", "c"): 1 / 3, ("Q", "c"): 0.0, ("K", "c"): 1.0,
    ("J", "b"): 0.0, ("Q", "b"): 1 / 3, ("K", "b"): 1.0,
    ("J", "cb"): 0.0, ("Q", "cb"): 2 / 3, ("K", "cb"): 1.0,
}  # fmt: skip
SOMETIMES = {("K", "")}  # states in which another equilibrium also plays the other move


class Kuhn(Rules):
    """Kuhn poker with one hand per match; the deal defines the start."""

    def draw(self, random: Random) -> tuple[str, dict[str, object]]:
        """Deal the cards.

        Only six deals exist, and chance is part of the game. Each task is therefore a separate draw, identified by
        a number.
        """
        return f"kuhn {random.getrandbits(62)}", {"cards": "".join(random.sample(CARDS, 2))}

    def begin(self, start: Mapping[str, object]) -> Hand:
        """Start a match."""
        return Hand(cast("str", start["cards"]))

    def sound(self, shown: str, options: Sequence[str]) -> tuple[str, ...]:
        """Return the moves with positive probability in some equilibrium."""
        state = known(shown)
        passive, active = options
        if state in SOMETIMES:
            return passive, active
        chance = EQUILIBRIUM[state]
        return (passive,) if chance == 0 else (active,) if chance == 1 else (passive, active)

    def perfect(self, shown: str, options: Sequence[str], random: Random) -> str:
        """Sample a move from the equilibrium."""
        return options[int(random.random() < EQUILIBRIUM[known(shown)])]


class Hand(Board):
    """One match."""

    def __init__(self, cards: str) -> None:
        super().__init__(Kuhn.players, Kuhn.cooperative)
        self.cards, self.done = cards, ""

    def told(self, player: int) -> str:
        """Return the player's own card and the history."""
        said = "".join(
            f" {'You' if number % 2 == player else 'They'} {'check' if move == 'c' else 'bet'}."
            for number, move in enumerate(self.done)
        )
        return f"You hold {self.cards[player]}.{said}"

    def options(self) -> tuple[str, ...]:
        """Return "check" and "bet", or after a bet "fold" and "call"."""
        return ("fold", "call") if self.done.endswith("b") else ("check", "bet")

    def make(self, move: str) -> None:
        """Apply a move and end the match if it was the last."""
        self.done += move[0]
        self.mover = 1 - self.mover
        chips = won(self.cards, self.done)
        if chips is not None:
            self.end((chips / CHIPS, -chips / CHIPS))


def known(shown: str) -> tuple[str, str]:
    """Return a player's information set: its card and the history, with c for check and b for bet."""
    return HOLD.findall(shown)[0], "".join(move[0] for _, move in SAID.findall(shown))


def won(cards: str, done: str) -> float | None:
    """Return the chips won by the first player; None before the last move.

    >>> won("QJ", "cc"), won("QJ", "bc"), won("QK", "cbf"), won("QK", "cb")
    (1.0, 2.0, -1.0, None)
    """
    if done in ("", "c", "b", "cb"):
        return None
    if done.endswith("f"):
        return 1.0 if len(done) == 2 else -1.0
    stake = 1.0 if done == "cc" else 2.0
    return stake if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -stake
