"""Answers that are functions of all parts, and tell nothing to whoever lacks one."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import NamedTuple

KEYS = (
    ("red", "blue", "green", "gold", "pink", "gray", "white", "black", "brown", "amber", "olive", "cyan"),
    ("box", "ring", "cone", "star", "disk", "cube", "arch", "bell", "drum", "fork", "harp", "lamp"),
    ("ant", "bee", "cat", "dog", "elk", "fox", "hen", "owl", "pig", "ram", "seal", "wolf"),
)  # of the first, the second and the third who speaks
CODES = "BCDFGHJKLMNPQRSTVWXZ"
MOST_ROWS = 64


class Puzzle(NamedTuple):
    """One drawing of parts.

    Args:
        parts: what each who speaks holds, in its words.
        own: what the one who answers holds, in words.
        answer: in words.
        content: the same for the same puzzle, in whatever order its table is shown.
    """

    parts: list[list[str]]
    own: str
    answer: list[str]
    content: str


def lookup(random: Random, speakers: int, values: int, size: int) -> Puzzle:
    """Parts that are keys of a table which only the one who answers holds: each row has another code."""
    keys = [list(column[:values]) for column in KEYS[:speakers]]
    rows = list(product(*keys))
    codes = random.sample([a + b for a in CODES for b in CODES] if len(rows) > len(CODES) else CODES, len(rows))
    table = dict(zip(rows, codes, strict=True))
    random.shuffle(rows)
    parts = [[random.choice(column) for _ in range(size)] for column in keys]
    answer = [table[row] for row in zip(*parts, strict=True)]
    shown = [f"{' '.join(row)} {table[row]}" for row in rows]
    return Puzzle(parts, ", ".join(shown), answer, f"{parts} of {sorted(shown)}")


def addition(random: Random, speakers: int, values: int, size: int) -> Puzzle:
    """Parts that are numbers, which add up modulo ``values``: without one of them every sum is as likely."""
    numbers = [[random.randrange(values) for _ in range(size)] for _ in range(speakers + 1)]
    answer = [str(sum(column) % values) for column in zip(*numbers, strict=True)]
    parts = [[str(number) for number in part] for part in numbers]
    return Puzzle(parts[:-1], " ".join(parts[-1]), answer, f"{parts} modulo {values}")
