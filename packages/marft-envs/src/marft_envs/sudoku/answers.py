"""Parser for an agent's fills: single cells, or the whole grid."""

from __future__ import annotations

import re

from marft.agents.answers import stated_answer
from marft_envs.grids.maps import Cell
from marft_envs.sudoku.rules import Grid

READ = re.compile(r"[\d\s,;:=|()\[\].+-]*")
GROUPS = re.compile(r"[\n;)\]]+")
NUMBER = re.compile(r"\d+")
NOT_WHOLE = re.compile(r"(?<!\d)[+-]\d|=\s*[+.=-]|\d[ \t]*[+.-][ \t]*\d")  # negative number, fraction or sum
MOST = 4000  # maximum characters read from an answer

Fills = list[tuple[Cell, int]]


def answer_in(text: str, size: int) -> Fills | Grid | None:
    r"""Parse the fills or the whole grid in a text; None if it contains neither, or further text.

    The answer is read from the last ``\boxed{}`` or ``<answer>`` tag. Without one, it follows the last ``####``, or
    else "the answer is". Otherwise the whole text is read. Rows, columns and values start at 1.

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
    """Return the numbers in a row; one number with ``size`` digits counts as a row."""
    found = NUMBER.findall(part)
    if len(found) == 1 and len(found[0]) == size:
        return [int(digit) for digit in found[0]]
    return [int(number[:9]) for number in found]
