"""Parser for an agent's fills: single cells, or the whole grid."""

from __future__ import annotations

import re

from marft.agents.answers import extract_answer
from marft_envs.grids.maps import Cell
from marft_envs.sudoku.rules import Grid

ANSWER_PATTERN = re.compile(r"[\d\s,;:=|()\[\].+-]*")
GROUP_SEPARATOR = re.compile(r"[\n;)\]]+")
NUMBER = re.compile(r"\d+")
NOT_WHOLE_NUMBERS = re.compile(r"(?<!\d)[+-]\d|=\s*[+.=-]|\d[ \t]*[+.-][ \t]*\d")  # negative number, fraction or sum
MAX_ANSWER = 4000  # maximum characters read from an answer

Fills = list[tuple[Cell, int]]


def parse_answer(text: str, size: int) -> Fills | Grid | None:
    r"""Parse the fills or the whole grid in a text; None if it contains neither, or further text.

    The answer is read from the last ``\boxed{}`` or ``<answer>`` tag. Without one, it follows the last ``####``, or
    else "the answer is". Otherwise the whole text is read. Rows, columns and values start at 1.

    >>> parse_answer("1,2 = 4", 4), parse_answer("Look: #### [[1,2,4],[3,4,1]]", 4)
    ([((0, 1), 4)], [((0, 1), 4), ((2, 3), 1)])
    >>> parse_answer("1234\n3412\n2143\n4321", 4)
    ((1, 2, 3, 4), (3, 4, 1, 2), (2, 1, 4, 3), (4, 3, 2, 1))
    >>> parse_answer("1,2 can be 4", 4) is None
    True
    """
    answer_text = extract_answer(text.rpartition("####")[2])[:MAX_ANSWER]
    if not ANSWER_PATTERN.fullmatch(answer_text) or NOT_WHOLE_NUMBERS.search(answer_text):
        return None
    groups = [numbers for part in GROUP_SEPARATOR.split(answer_text) if (numbers := _row_numbers(part, size))]
    if len(groups) == size and all(len(group) == size for group in groups):
        return tuple(map(tuple, groups))
    if groups and all(len(group) == 3 for group in groups):
        return [((row - 1, column - 1), value) for row, column, value in groups]
    return None


def _row_numbers(part: str, size: int) -> list[int]:
    """Return the numbers in a row; one number with ``size`` digits counts as a row."""
    numbers = NUMBER.findall(part)
    if len(numbers) == 1 and len(numbers[0]) == size:
        return [int(digit) for digit in numbers[0]]
    return [int(number[:9]) for number in numbers]
