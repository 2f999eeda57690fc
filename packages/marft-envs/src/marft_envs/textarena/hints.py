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

from marft_envs.textarena.games import Board, Rules

COLOURS, SHAPES = ("red", "blue", "green"), ("cup", "hat", "box")
OBJECT = re.compile(r"(\d+) (\w+) (\w+)")
TARGET = re.compile(r"It is (\d+)\.")
HINTS = re.compile(r"Hints: ([\w ,]+)\.")
WRONG = re.compile(r"Not: ([\d ,]+)\.")
Object = tuple[str, str]


class Hints(Rules):
    """Objects with a color and a shape; the order has no influence on a start's content."""

    cooperative: ClassVar[bool] = True

    objects: Annotated[int, Field(ge=2, le=9)] = 5  # number of objects
    rounds: Annotated[int, Field(ge=1, le=9)] = 3  # maximum rounds of a word and a guess

    def draw(self, random: Random) -> tuple[str, dict[str, object]]:
        """Draw the objects and the hidden one."""
        objects = random.sample(list(product(COLOURS, SHAPES)), self.objects)
        target = random.randrange(self.objects)
        content = f"hints {sorted(objects)} {objects[target]}"
        return content, {"objects": [" ".join(one) for one in objects], "target": target + 1}

    def begin(self, start: Mapping[str, object]) -> Guessing:
        """Start a match."""
        return Guessing(cast("Sequence[str]", start["objects"]), cast("int", start["target"]), self.rounds)

    def sound(self, shown: str, options: Sequence[str]) -> tuple[str, ...]:
        """Return the words with the fewest remaining objects, or the guesses consistent with every word."""
        objects = {number: (colour, shape) for number, colour, shape in OBJECT.findall(shown)}
        target = TARGET.findall(shown)
        left = _left(objects, _listed(HINTS, shown), _listed(WRONG, shown))
        if not target:
            return tuple(option for option in options if option in left) or tuple(options)
        counts = {word: sum(word in objects[number] for number in left) for word in options}
        return tuple(word for word in options if counts[word] == min(counts.values()))


class Guessing(Board):
    """One match: player 0 gives words, player 1 guesses."""

    def __init__(self, objects: Sequence[str], target: int, rounds: int) -> None:
        super().__init__(Hints.players, Hints.cooperative)
        self.objects, self.target, self.rounds = objects, target, rounds
        self.hints: list[str] = []
        self.wrong: list[str] = []

    def told(self, player: int) -> str:
        """Return the objects, words and wrong guesses, and for player 0 the hidden object."""
        parts = [", ".join(f"{number} {one}" for number, one in enumerate(self.objects, 1)) + "."]
        parts += [f"It is {self.target}."] if player == 0 else []
        parts += [f"Hints: {', '.join(self.hints)}."] if self.hints else []
        parts += [f"Not: {', '.join(self.wrong)}."] if self.wrong else []
        return " ".join(parts)

    def options(self) -> tuple[str, ...]:
        """Return the hidden object's properties, or every object's number."""
        if self.mover == 0:
            return tuple(self.objects[self.target - 1].split())
        return tuple(str(number) for number in range(1, len(self.objects) + 1))

    def make(self, move: str) -> None:
        """Apply a word or a guess."""
        guessed = self.mover == 1
        (self.wrong if guessed else self.hints).append(move)
        self.mover = 1 - self.mover
        if guessed and move == str(self.target):
            self.end([1.0 - (len(self.hints) - 1) / self.rounds] * 2)
        elif guessed and len(self.hints) == self.rounds:
            self.end([0.0, 0.0])


def _listed(pattern: re.Pattern[str], shown: str) -> list[str]:
    return [word for words in pattern.findall(shown) for word in words.split(", ")]


def _left(objects: Mapping[str, Object], hints: Sequence[str], wrong: Sequence[str]) -> list[str]:
    """Return the remaining objects: not yet guessed, and consistent with every word."""
    return [n for n, one in objects.items() if n not in wrong and all(hint in one for hint in hints)]
