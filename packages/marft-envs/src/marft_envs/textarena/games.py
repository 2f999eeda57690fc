"""Common interface to games: rules that generate starts, and matches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar, Protocol

from marft.config.settings import Settings

MAX_ILLEGAL_IN_ROW = 1  # consecutive illegal moves that are forgiven, as in TextArena; one more loses the match
LOSS_PAYOFF, WIN_PAYOFF = -1.0, 1.0


class Match(Protocol):
    """Interface to a running match; player 0 moves first."""

    @property
    def current_player(self) -> int:
        """Player to move."""
        ...

    @property
    def over(self) -> bool:
        """True if the match has ended."""

    @property
    def illegal_counts(self) -> Sequence[int]:
        """Number of illegal moves so far, by player."""
        ...

    def player_text(self, player: int) -> str:
        """Return the text for a player before its move."""
        ...

    def options(self) -> tuple[str, ...]:
        """Return the legal moves for the player to move; () if unknown."""
        ...

    def play_move(self, move: str) -> None:
        """Play a move for the player to move; an illegal move is reported in the next text, or loses."""
        ...

    def payoffs(self) -> tuple[float, ...]:
        """Return each player's payoff, from −1 to 1, after the end."""
        ...


class GameRules(Settings):
    """Rules for a built-in game; the fields define the keys in ``params``."""

    players: ClassVar[int] = 2
    cooperative: ClassVar[bool] = False  # all players earn the same

    @abstractmethod
    def draw_start(self, random: Random) -> tuple[str, dict[str, object]]:
        """Generate a start: its content, which decides the split, and its plain values."""

    @abstractmethod
    def start_match(self, start: Mapping[str, object]) -> Match:
        """Start a match."""

    @abstractmethod
    def optimal_moves(self, text: str, options: Sequence[str]) -> tuple[str, ...]:
        """Return the optimal moves.

        Args:
            text: text for the player to move; it contains all that the player knows.
            options: the legal moves.
        """

    def perfect_move(self, text: str, options: Sequence[str], random: Random) -> str:
        """Return a perfect player's move."""
        return random.choice(self.optimal_moves(text, options))


class MatchBoard(ABC):
    """Base class for matches of built-in games: player to move, illegal moves, payoffs.

    An illegal move is reported to its player, who may try again. A second one in a row loses the match. In a
    cooperative game it ends the match with payoff 0 for all players.
    """

    def __init__(self, players: int, cooperative: bool) -> None:
        self.current_player, self.illegal_counts, self.over = 0, [0] * players, False
        self._payoffs, self._cooperative = [0.0] * players, cooperative
        self._illegal_in_row, self._illegal_note = 0, ""

    @abstractmethod
    def options(self) -> tuple[str, ...]:
        """Return the legal moves of the player to move."""

    @abstractmethod
    def apply_move(self, move: str) -> None:
        """Apply a legal move: select the next player or end the match."""

    @abstractmethod
    def state_text(self, player: int) -> str:
        """Return the text for a player, without notes on illegal moves."""

    def player_text(self, player: int) -> str:
        """Return the text for a player, with a note on its own illegal move."""
        return (
            f"{self.state_text(player)} {self._illegal_note}"
            if self._illegal_note and player == self.current_player
            else self.state_text(player)
        )

    def play_move(self, move: str) -> None:
        """Play a move, legal or not."""
        option = match_option(move, self.options())
        if option:
            self._illegal_in_row, self._illegal_note = 0, ""
            self.apply_move(option)
            return
        self.illegal_counts[self.current_player] += 1
        self._illegal_in_row += 1
        self._illegal_note = "That is not allowed."
        if self._illegal_in_row > MAX_ILLEGAL_IN_ROW:
            self.finish(
                [
                    0.0 if self._cooperative else LOSS_PAYOFF if n == self.current_player else WIN_PAYOFF
                    for n in range(len(self._payoffs))
                ]
            )

    def finish(self, payoffs: Sequence[float]) -> None:
        """End the match with the given payoffs."""
        self._payoffs, self.over = list(payoffs), True

    def payoffs(self) -> tuple[float, ...]:
        """Return each player's payoff."""
        return tuple(self._payoffs)


def match_option(move: str, options: Sequence[str]) -> str:
    """Return the option equal to a move, or "".

    Spacing, case, brackets and a final period are ignored.

    >>> match_option(" [Take 2 from B]. ", ("take 1 from B", "take 2 from B"))
    'take 2 from B'
    """
    normalized = normalize_move(move)
    return next((option for option in options if normalize_move(option) == normalized), "")


def normalize_move(text: str) -> str:
    """Normalize a move: remove extra spaces, case, brackets and the final period."""
    return " ".join(text.lstrip(" \n\t[").rstrip(" \n\t].").split()).casefold()
