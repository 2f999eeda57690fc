"""Common interface to games: rules that generate starts, and matches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar, Protocol

from marft.config.settings import Settings

ALLOWANCE = 1  # consecutive illegal moves that are forgiven, as in TextArena; one more loses the match
LOST, WON = -1.0, 1.0


class Match(Protocol):
    """Interface to a running match; player 0 moves first."""

    @property
    def mover(self) -> int:
        """Player to move."""
        ...

    @property
    def over(self) -> bool:
        """True if the match has ended."""

    @property
    def illegal(self) -> Sequence[int]:
        """Number of illegal moves so far, by player."""
        ...

    def shown(self, player: int) -> str:
        """Return the text for a player before its move."""
        ...

    def options(self) -> tuple[str, ...]:
        """Return the legal moves for the player to move; () if unknown."""
        ...

    def play(self, move: str) -> None:
        """Play a move for the player to move; an illegal move is reported in the next text, or loses."""
        ...

    def paid(self) -> tuple[float, ...]:
        """Return each player's payoff, from −1 to 1, after the end."""
        ...


class Rules(Settings):
    """Rules for a built-in game; the fields define the keys in ``params``."""

    players: ClassVar[int] = 2
    cooperative: ClassVar[bool] = False  # all players earn the same

    @abstractmethod
    def draw(self, random: Random) -> tuple[str, dict[str, object]]:
        """Generate a start: its content, which decides the split, and its plain values."""

    @abstractmethod
    def begin(self, start: Mapping[str, object]) -> Match:
        """Start a match."""

    @abstractmethod
    def sound(self, shown: str, options: Sequence[str]) -> tuple[str, ...]:
        """Return the optimal moves.

        Args:
            shown: text for the player to move; it contains all that the player knows.
            options: the legal moves.
        """

    def perfect(self, shown: str, options: Sequence[str], random: Random) -> str:
        """Return a perfect player's move."""
        return random.choice(self.sound(shown, options))


class Board(ABC):
    """Base class for matches of built-in games: player to move, illegal moves, payoffs.

    An illegal move is reported to its player, who may try again. A second one in a row loses the match. In a
    cooperative game it ends the match with payoff 0 for all players.
    """

    def __init__(self, players: int, cooperative: bool) -> None:
        self.mover, self.illegal, self.over = 0, [0] * players, False
        self._paid, self._cooperative = [0.0] * players, cooperative
        self._in_a_row, self._refused = 0, ""

    @abstractmethod
    def options(self) -> tuple[str, ...]:
        """Return the legal moves of the player to move."""

    @abstractmethod
    def make(self, move: str) -> None:
        """Apply a legal move: select the next player or end the match."""

    @abstractmethod
    def told(self, player: int) -> str:
        """Return the text for a player, without notes on illegal moves."""

    def shown(self, player: int) -> str:
        """Return the text for a player, with a note on its own illegal move."""
        return f"{self.told(player)} {self._refused}" if self._refused and player == self.mover else self.told(player)

    def play(self, move: str) -> None:
        """Play a move, legal or not."""
        found = legal(move, self.options())
        if found:
            self._in_a_row, self._refused = 0, ""
            self.make(found)
            return
        self.illegal[self.mover] += 1
        self._in_a_row += 1
        self._refused = "That is not allowed."
        if self._in_a_row > ALLOWANCE:
            self.end([0.0 if self._cooperative else LOST if n == self.mover else WON for n in range(len(self._paid))])

    def end(self, paid: Sequence[float]) -> None:
        """End the match with the given payoffs."""
        self._paid, self.over = list(paid), True

    def paid(self) -> tuple[float, ...]:
        """Return each player's payoff."""
        return tuple(self._paid)


def legal(move: str, options: Sequence[str]) -> str:
    """Return the option equal to a move, or "".

    Spacing, case, brackets and a final period are ignored.

    >>> legal(" [Take 2 from B]. ", ("take 1 from B", "take 2 from B"))
    'take 2 from B'
    """
    said = plain(move)
    return next((option for option in options if plain(option) == said), "")


def plain(text: str) -> str:
    """Normalize a move: remove extra spaces, case, brackets and the final period."""
    return " ".join(text.lstrip(" \n\t[").rstrip(" \n\t].").split()).casefold()
