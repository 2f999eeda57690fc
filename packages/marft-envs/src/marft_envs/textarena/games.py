"""Games with a common interface: rules that generate starts, matches, and the built-in games Nim and Hints."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from operator import xor
from random import Random
from string import ascii_uppercase
from typing import Annotated, ClassVar, NamedTuple, Protocol, cast

from pydantic import Field

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
    def is_over(self) -> bool:
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


class GameStart(NamedTuple):
    """Start of a match: the content that decides its split, and the values that :meth:`GameRules.start_match` reads."""

    content: str
    values: dict[str, object]


class GameRules(Settings):
    """Rules for a built-in game; the fields define the keys in ``params``."""

    players: ClassVar[int] = 2
    cooperative: ClassVar[bool] = False  # all players earn the same

    @abstractmethod
    def draw_start(self, random: Random) -> GameStart:
        """Draw the start of a match."""

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
        self.current_player, self.illegal_counts, self.is_over = 0, [0] * players, False
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
        self._payoffs, self.is_over = list(payoffs), True

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


HEAP_PATTERN = re.compile(r"\b([A-Z]) (\d+)")
TAKE_PATTERN = re.compile(r"take (\d+) from ([A-Z])")


class Nim(GameRules):
    """Heaps with up to ``largest`` pieces; their order has no influence on a start's content.

    Players take pieces from one heap per turn, and the last piece wins (Bouton 1901). The player to move can force a
    win if the exclusive or of the heap sizes is not 0.
    """

    heaps: Annotated[int, Field(ge=1, le=6)] = Field(default=2, description="number of heaps")
    largest: Annotated[int, Field(ge=1, le=30)] = Field(default=9, description="maximum pieces in a heap")

    def draw_start(self, random: Random) -> GameStart:
        """Draw the heap sizes."""
        heaps = [random.randint(1, self.largest) for _ in range(self.heaps)]
        return GameStart(f"nim {sorted(heaps)}", {"heaps": heaps})

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


COLORS, SHAPES = ("red", "blue", "green"), ("cup", "hat", "box")
OBJECT_PATTERN = re.compile(r"(\d+) (\w+) (\w+)")
TARGET_PATTERN = re.compile(r"It is (\d+)\.")
HINTS_PATTERN = re.compile(r"Hints: ([\w ,]+)\.")
WRONG_PATTERN = re.compile(r"Not: ([\d ,]+)\.")
Object = tuple[str, str]


class Hints(GameRules):
    """Objects with a color and a shape; the order has no influence on a start's content.

    A cooperative game: one player names a hidden object's properties, and a second player guesses it. Each round has
    one word and one guess. A correct guess in the first round pays 1, and less in each later round.
    """

    cooperative: ClassVar[bool] = True

    objects: Annotated[int, Field(ge=2, le=9)] = Field(default=5, description="number of objects")
    rounds: Annotated[int, Field(ge=1, le=9)] = Field(default=3, description="maximum rounds of a word and a guess")

    def draw_start(self, random: Random) -> GameStart:
        """Draw the objects and the hidden one."""
        objects = random.sample(list(product(COLORS, SHAPES)), self.objects)
        target = random.randrange(self.objects)
        content = f"hints {sorted(objects)} {objects[target]}"
        return GameStart(content, {"objects": [" ".join(item) for item in objects], "target": target + 1})

    def start_match(self, start: Mapping[str, object]) -> HintsMatch:
        """Start a match."""
        return HintsMatch(cast("Sequence[str]", start["objects"]), cast("int", start["target"]), self.rounds)

    def optimal_moves(self, text: str, options: Sequence[str]) -> tuple[str, ...]:
        """Return the words with the fewest remaining objects, or the guesses consistent with every word."""
        objects = {number: (color, shape) for number, color, shape in OBJECT_PATTERN.findall(text)}
        target = TARGET_PATTERN.findall(text)
        remaining = _remaining_objects(objects, _parse_list(HINTS_PATTERN, text), _parse_list(WRONG_PATTERN, text))
        if not target:
            return tuple(option for option in options if option in remaining) or tuple(options)
        counts = {word: sum(word in objects[number] for number in remaining) for word in options}
        return tuple(word for word in options if counts[word] == min(counts.values()))


class HintsMatch(MatchBoard):
    """One match: player 0 gives words, player 1 guesses."""

    def __init__(self, objects: Sequence[str], target: int, rounds: int) -> None:
        super().__init__(Hints.players, Hints.cooperative)
        self.objects, self.target, self.rounds = objects, target, rounds
        self.hints: list[str] = []
        self.wrong_guesses: list[str] = []

    def state_text(self, player: int) -> str:
        """Return the objects, words and wrong guesses, and for player 0 the hidden object."""
        parts = [", ".join(f"{number} {item}" for number, item in enumerate(self.objects, 1)) + "."]
        parts += [f"It is {self.target}."] if player == 0 else []
        parts += [f"Hints: {', '.join(self.hints)}."] if self.hints else []
        parts += [f"Not: {', '.join(self.wrong_guesses)}."] if self.wrong_guesses else []
        return " ".join(parts)

    def options(self) -> tuple[str, ...]:
        """Return the hidden object's properties, or every object's number."""
        if self.current_player == 0:
            return tuple(self.objects[self.target - 1].split())
        return tuple(str(number) for number in range(1, len(self.objects) + 1))

    def apply_move(self, move: str) -> None:
        """Apply a word or a guess."""
        is_guess = self.current_player == 1
        (self.wrong_guesses if is_guess else self.hints).append(move)
        self.current_player = 1 - self.current_player
        if is_guess and move == str(self.target):
            self.finish([1.0 - (len(self.hints) - 1) / self.rounds] * 2)
        elif is_guess and len(self.hints) == self.rounds:
            self.finish([0.0, 0.0])


def _parse_list(pattern: re.Pattern[str], text: str) -> list[str]:
    return [word for words in pattern.findall(text) for word in words.split(", ")]


def _remaining_objects(objects: Mapping[str, Object], hints: Sequence[str], wrong_guesses: Sequence[str]) -> list[str]:
    """Return the remaining objects: not yet guessed, and consistent with every word."""
    return [
        n for n, description in objects.items() if n not in wrong_guesses and all(hint in description for hint in hints)
    ]
