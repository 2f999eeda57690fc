"""Answer plans for generated questions: the sources to read, and the operations on their values.

A plan is a list of nodes, and each node gives a value. A node holds its kind and its arguments. An argument is
text, or the index of an earlier node.

    page      subject, field         field on the page of a subject, or of each of several subjects
    cell      file, row, column      cell in the row with this first cell
    most      file, column           first cell of the row with the largest number in the column
    above     file, column, bound    first cells of the rows with a larger number than the bound
    between   a, b                   absolute difference of two numbers
    sum       a, b                   sum of two numbers
    sorted    a                      names without duplicates, in alphabetical order
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Node = Sequence[Any]
Value = str | list[str]
FIELD = re.compile(r"^(\w+): (.+)$", re.MULTILINE)


@dataclass(slots=True)
class Known:
    """Facts read so far.

    Args:
        pages: fields by title.
        files: rows by file, header first.
        numbers: numbers of pages from search results, by title.
        worked_out: values of expressions.
    """

    pages: dict[str, Mapping[str, str]] = field(default_factory=dict)
    files: dict[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    worked_out: dict[str, str] = field(default_factory=dict)


class Missing(Exception):  # noqa: N818  a signal for the next read, not an error
    """Signal for a missing fact: a page or file to read, or an expression to calculate.

    Args:
        what: "page", "file" or "value".
        names: titles, a file name, or an expression.
    """

    def __init__(self, what: str, names: Sequence[str]) -> None:
        self.what, self.names = what, tuple(names)
        super().__init__(what, self.names)


def answer_of(plan: Sequence[Node], known: Known) -> str:
    """Execute a plan and return its answer.

    Raises:
        Missing: the plan needs a fact outside ``known``.
    """
    values: list[Value] = []
    for kind, *given in plan:
        made = [values[one] if isinstance(one, int) else one for one in given]
        values.append(_MAKE[kind](known, *made))
    last = values[-1]
    return ", ".join(last) if isinstance(last, list) else last


def fields_in(text: str) -> dict[str, str]:
    """Parse the fields on a page.

    >>> fields_in("Ada Kern\\nborn: 1912\\ntown: Brod")
    {'born': '1912', 'town': 'Brod'}
    """
    return dict(FIELD.findall(text))


def _page(known: Known, subject: Value, name: str) -> Value:
    titles = subject if isinstance(subject, list) else [subject]
    unread = [title for title in titles if title not in known.pages]
    if unread:
        raise Missing("page", unread)
    found = [known.pages[title][name] for title in titles]
    return found if isinstance(subject, list) else found[0]


def _table(known: Known, file: str) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    if file not in known.files:
        raise Missing("file", [file])
    header, *rows = known.files[file]
    return header, rows


def _cell(known: Known, file: str, row: str, column: str) -> str:
    header, rows = _table(known, file)
    return next(cells[header.index(column)] for cells in rows if cells[0] == row)


def _most(known: Known, file: str, column: str) -> str:
    header, rows = _table(known, file)
    return max(rows, key=lambda cells: int(cells[header.index(column)]))[0]


def _above(known: Known, file: str, column: str, bound: str) -> list[str]:
    header, rows = _table(known, file)
    return [cells[0] for cells in rows if int(cells[header.index(column)]) > int(bound)]


def _between(known: Known, one: str, other: str) -> str:
    low, high = sorted((one, other), key=int)
    return _worked_out(known, f"{high} - {low}")


def _sum(known: Known, one: str, other: str) -> str:
    return _worked_out(known, f"{one} + {other}")


def _worked_out(known: Known, expression: str) -> str:
    if expression not in known.worked_out:
        raise Missing("value", [expression])
    return known.worked_out[expression]


def _sorted(_: Known, names: list[str]) -> list[str]:
    return sorted(set(names))


_MAKE: Mapping[str, Any] = {
    "page": _page, "cell": _cell, "most": _most, "above": _above, "between": _between, "sum": _sum, "sorted": _sorted
}  # fmt: skip
