"""Hints: a game that is played together. One player knows which of some objects is meant and says one word of it a
round; the other one guesses. Found in the first round it pays 1, and less with every round."""

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
    """Objects with a colour and a shape. The orders in which they stand are one start."""

    cooperative: ClassVar[bool] = True

    objects: Annotated[int, Field(ge=2, le=9)] = 5  # that it may be
    rounds: Annotated[int, Field(ge=1, le=9)] = 3  # of a word and a guess

    def draw(self, random: Random) -> tuple[str, dict[str, object]]:
        objects = random.sample(list(product(COLOURS, SHAPES)), self.objects)
        target = random.randrange(self.objects)
        content = f"hints {sorted(objects)} {objects[target]}"
        return content, {"objects": [" ".join(one) for one in objects], "target": target + 1}

    def begin(self, start: Mapping[str, object]) -> Guessing:
        return Guessing(cast("Sequence[str]", start["objects"]), cast("int", start["target"]), self.rounds)

    def sound(self, shown: str, options: Sequence[str]) -> tuple[str, ...]:
        """Of words those that leave the fewest objects, of guesses those that all words fit."""
        objects = {number: (colour, shape) for number, colour, shape in OBJECT.findall(shown)}
        target = TARGET.findall(shown)
        left = _left(objects, _listed(HINTS, shown), _listed(WRONG, shown))
        if not target:
            return tuple(option for option in options if option in left) or tuple(options)
        counts = {word: sum(word in objects[number] for number in left) for word in options}
        return tuple(word for word in options if counts[word] == min(counts.values()))


class Guessing(Board):
    """One match: player 0 says words, player 1 guesses."""

    def __init__(self, objects: Sequence[str], target: int, rounds: int) -> None:
        super().__init__(Hints.players, Hints.cooperative)
        self.objects, self.target, self.rounds = objects, target, rounds
        self.hints: list[str] = []
        self.wrong: list[str] = []

    def told(self, player: int) -> str:
        """The objects, what was said and guessed, and to one player which it is."""
        parts = [", ".join(f"{number} {one}" for number, one in enumerate(self.objects, 1)) + "."]
        parts += [f"It is {self.target}."] if player == 0 else []
        parts += [f"Hints: {', '.join(self.hints)}."] if self.hints else []
        parts += [f"Not: {', '.join(self.wrong)}."] if self.wrong else []
        return " ".join(parts)

    def options(self) -> tuple[str, ...]:
        if self.mover == 0:
            return tuple(self.objects[self.target - 1].split())
        return tuple(str(number) for number in range(1, len(self.objects) + 1))

    def make(self, move: str) -> None:
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
    """Objects that all words fit, and that were not guessed."""
    return [n for n, one in objects.items() if n not in wrong and all(hint in one for hint in hints)]
