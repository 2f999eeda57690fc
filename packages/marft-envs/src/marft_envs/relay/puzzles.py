"""Puzzles with answers from several parts; a missing part leaves the answer unknown."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import NamedTuple

KEYS = (
    ("red", "blue", "green", "gold", "pink", "gray", "white", "black", "brown", "amber", "olive", "cyan"),
    ("box", "ring", "cone", "star", "disk", "cube", "arch", "bell", "drum", "fork", "harp", "lamp"),
    ("ant", "bee", "cat", "dog", "elk", "fox", "hen", "owl", "pig", "ram", "seal", "wolf"),
)  # keys of the first, second and third speaker
CODES = "BCDFGHJKLMNPQRSTVWXZ"
MAX_ROWS = 64


class RelayPuzzle(NamedTuple):
    """A puzzle.

    Args:
        parts: symbols held by each speaker.
        answerer_part: text of the answerer's part.
        answer: symbols of the answer.
        content: canonical text, independent of the order of the table's rows.
    """

    parts: list[list[str]]
    answerer_part: str
    answer: list[str]
    content: str


def generate_lookup(random: Random, speakers: int, values: int, size: int) -> RelayPuzzle:
    """Generate a puzzle with keys as parts, and a table with one distinct code per row for the answerer."""
    keys = [list(column[:values]) for column in KEYS[:speakers]]
    rows = list(product(*keys))
    codes = random.sample([a + b for a in CODES for b in CODES] if len(rows) > len(CODES) else CODES, len(rows))
    table = dict(zip(rows, codes, strict=True))
    random.shuffle(rows)
    parts = [[random.choice(column) for _ in range(size)] for column in keys]
    answer = [table[row] for row in zip(*parts, strict=True)]
    table_rows = [f"{' '.join(row)} {table[row]}" for row in rows]
    return RelayPuzzle(parts, ", ".join(table_rows), answer, f"{parts} of {sorted(table_rows)}")


def generate_sum(random: Random, speakers: int, values: int, size: int) -> RelayPuzzle:
    """Generate a puzzle with numbers that add up modulo ``values``.

    Without one of the parts, every sum is equally likely.
    """
    numbers = [[random.randrange(values) for _ in range(size)] for _ in range(speakers + 1)]
    answer = [str(sum(column) % values) for column in zip(*numbers, strict=True)]
    parts = [[str(number) for number in part] for part in numbers]
    return RelayPuzzle(parts[:-1], " ".join(parts[-1]), answer, f"{parts} modulo {values}")
