"""Hints, a cooperative game: one player names a hidden object's properties, and a second player guesses it.

Each round has one word and one guess. A correct guess in the first round pays 1, and less in each later round.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from typing import Annotated, ClassVar, cast

from pydantic import Field

from marft_envs.textarena.games import GameRules, MatchBoard

COLORS, SHAPES = ("red", "blue", "green"), ("cup", "hat", "box")
OBJECT_PATTERN = re.compile(r"(\d+) (\w+) (\w+)")
TARGET_PATTERN = re.compile(r"It is (\d+)\.")
HINTS_PATTERN = re.compile(r"Hints: ([\w ,]+)\.")
WRONG_PATTERN = re.compile(r"Not: ([\d ,]+)\.")
Object = tuple[str, str]


class Hints(GameRules):
    """Objects with a color and a shape; the order has no influence on a start's content."""

    cooperative: ClassVar[bool] = True

    objects: Annotated[int, Field(ge=2, le=9)] = 5  # number of objects
    rounds: Annotated[int, Field(ge=1, le=9)] = 3  # maximum rounds of a word and a guess

    def draw_start(self, random: Random) -> tuple[str, dict[str, object]]:
        """Draw the objects and the hidden one."""
        objects = random.sample(list(product(COLORS, SHAPES)), self.objects)
        target = random.randrange(self.objects)
        content = f"hints {sorted(objects)} {objects[target]}"
        return content, {"objects": [" ".join(item) for item in objects], "target": target + 1}

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
