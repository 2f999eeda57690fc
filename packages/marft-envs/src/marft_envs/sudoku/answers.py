"""Reading what an agent filled in: single cells, or the whole grid."""

from __future__ import annotations

import re

from marft.agents.answers import stated_answer
from marft_envs.grids.maps import Cell
from marft_envs.sudoku.rules import Grid

READ = re.compile(r"[\d\s,;:=|()\[\].+-]*")
GROUPS = re.compile(r"[\n;)\]]+")
NUMBER = re.compile(r"\d+")
NOT_WHOLE = re.compile(r"(?<!\d)[+-]\d|=\s*[+.=-]|\d[ \t]*[+.-][ \t]*\d")  # negative, a fraction, a sum
MOST = 4000  # characters that are read of an answer

Fills = list[tuple[Cell, int]]


def answer_in(text: str, size: int) -> Fills | Grid | None:
    r"""The fills, or the whole grid, that a text states; None where it states neither, or anything else beside.

    They stand in the last ``\boxed{}`` or ``<answer>`` tag, else after the last ``####``, else after "the answer is",
    else in the whole text. Rows, columns and values count from 1.

    >>> answer_in("1,2 = 4", 4), answer_in("Look: #### [[1,2,4],[3,4,1]]", 4)
    ([((0, 1), 4)], [((0, 1), 4), ((2, 3), 1)])
    >>> answer_in("1234\n3412\n2143\n4321", 4)
    ((1, 2, 3, 4), (3, 4, 1, 2), (2, 1, 4, 3), (4, 3, 2, 1))
    >>> answer_in("1,2 can be 4", 4) is None
    True
    """
    stated = stated_answer(text.rpartition("####")[2])[:MOST]
    if not READ.fullmatch(stated) or NOT_WHOLE.search(stated):
        return None
    groups = [numbers for part in GROUPS.split(stated) if (numbers := _numbers(part, size))]
    if len(groups) == size and all(len(group) == size for group in groups):
        return tuple(map(tuple, groups))
    if groups and all(len(group) == 3 for group in groups):
        return [((row - 1, column - 1), value) for row, column, value in groups]
    return None


def _numbers(part: str, size: int) -> list[int]:
    """The numbers in a row; one as long as a row is a row of digits."""
    found = NUMBER.findall(part)
    if len(found) == 1 and len(found[0]) == size:
        return [int(digit) for digit in found[0]]
    return [int(number[:9]) for number in found]
