"""What a game is to a session, whoever wrote it: rules that are drawn from, and a match that is played."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar, Protocol

from marft.config.settings import Settings

ALLOWANCE = 1  # illegal moves in a row that are forgiven, as in TextArena; one more loses the match
LOST, WON = -1.0, 1.0


class Match(Protocol):
    """One match under way. Players are numbered from 0, which is who begins."""

    @property
    def mover(self) -> int:
        """Whose move it is."""
        ...

    @property
    def over(self) -> bool: ...

    @property
    def illegal(self) -> Sequence[int]:
        """Illegal moves so far, by player."""
        ...

    def shown(self, player: int) -> str:
        """What a player is shown before its move."""
        ...

    def options(self) -> tuple[str, ...]:
        """The moves that the mover may make; () where they cannot be listed."""
        ...

    def play(self, move: str) -> None:
        """The mover's move; an illegal one is refused in what is shown next, or loses."""
        ...

    def paid(self) -> tuple[float, ...]:
        """What each player has earned, from -1 to 1, once the match is over."""
        ...


class Rules(Settings):
    """A game of our own: its fields are the keys of ``params``."""

    players: ClassVar[int] = 2
    cooperative: ClassVar[bool] = False  # all players earn the same

    @abstractmethod
    def draw(self, random: Random) -> tuple[str, dict[str, object]]:
        """What makes a start the one that it is, and the start, in plain values."""

    @abstractmethod
    def begin(self, start: Mapping[str, object]) -> Match:
        """A match from a start."""

    @abstractmethod
    def sound(self, shown: str, options: Sequence[str]) -> tuple[str, ...]:
        """The moves that a perfect player may make.

        Args:
            shown: what the mover is shown: nothing else is known.
            options: that it has.
        """

    def perfect(self, shown: str, options: Sequence[str], random: Random) -> str:
        """A perfect player's move."""
        return random.choice(self.sound(shown, options))


class Board(ABC):
    """What all matches of our own have: whose move it is, what was illegal, how it ended.

    An illegal move is told to its player, who may try again; a second one in a row loses the match, or in a game that
    is played together ends it with nothing.
    """

    def __init__(self, players: int, cooperative: bool) -> None:
        self.mover, self.illegal, self.over = 0, [0] * players, False
        self._paid, self._cooperative = [0.0] * players, cooperative
        self._in_a_row, self._refused = 0, ""

    @abstractmethod
    def options(self) -> tuple[str, ...]:
        """The moves that the mover may make."""

    @abstractmethod
    def make(self, move: str) -> None:
        """A legal move, which hands over to whoever moves next, or ends the match."""

    @abstractmethod
    def told(self, player: int) -> str:
        """What a player is shown while nothing was refused."""

    def shown(self, player: int) -> str:
        return f"{self.told(player)} {self._refused}" if self._refused and player == self.mover else self.told(player)

    def play(self, move: str) -> None:
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
        self._paid, self.over = list(paid), True

    def paid(self) -> tuple[float, ...]:
        return tuple(self._paid)


def legal(move: str, options: Sequence[str]) -> str:
    """The option that a text is; "" where it is none. Spacing, case, brackets and a full stop do not count.

    >>> legal(" [Take 2 from B]. ", ("take 1 from B", "take 2 from B"))
    'take 2 from B'
    """
    said = plain(move)
    return next((option for option in options if plain(option) == said), "")


def plain(text: str) -> str:
    """A move without spacing, case, brackets and full stop."""
    return " ".join(text.lstrip(" \n\t[").rstrip(" \n\t].").split()).casefold()
