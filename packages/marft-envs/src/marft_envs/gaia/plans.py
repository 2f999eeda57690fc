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

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Node = Sequence[Any]
Value = str | list[str]
FIELD_PATTERN = re.compile(r"^(\w+): (.+)$", re.MULTILINE)


@dataclass(slots=True)
class KnownFacts:
    """Facts read so far.

    Args:
        pages: fields by title.
        files: rows by file, header first.
        page_numbers: numbers of pages from search results, by title.
        computed: values of expressions.
    """

    pages: dict[str, Mapping[str, str]] = field(default_factory=dict)
    files: dict[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    page_numbers: dict[str, int] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)


class MissingFact(Exception):  # noqa: N818  a signal for the next read, not an error
    """Signal for a missing fact: a page or file to read, or an expression to calculate.

    Args:
        kind: "page", "file" or "value".
        names: titles, a file name, or an expression.
    """

    def __init__(self, kind: str, names: Sequence[str]) -> None:
        self.kind, self.names = kind, tuple(names)
        super().__init__(kind, self.names)


def execute_plan(plan: Sequence[Node], facts: KnownFacts) -> str:
    """Execute a plan and return its answer.

    Raises:
        MissingFact: the plan needs a fact outside ``facts``.
    """
    values: list[Value] = []
    for kind, *arguments in plan:
        resolved = [values[argument] if isinstance(argument, int) else argument for argument in arguments]
        values.append(_NODE_FUNCTIONS[kind](facts, *resolved))
    last = values[-1]
    return ", ".join(last) if isinstance(last, list) else last


def parse_fields(text: str) -> dict[str, str]:
    """Parse the fields on a page.

    >>> parse_fields("Ada Kern\\nborn: 1912\\ntown: Brod")
    {'born': '1912', 'town': 'Brod'}
    """
    return dict(FIELD_PATTERN.findall(text))


def _page_field(facts: KnownFacts, subject: Value, name: str) -> Value:
    titles = subject if isinstance(subject, list) else [subject]
    missing = [title for title in titles if title not in facts.pages]
    if missing:
        raise MissingFact("page", missing)
    field_values = [facts.pages[title][name] for title in titles]
    return field_values if isinstance(subject, list) else field_values[0]


def _file_table(facts: KnownFacts, file: str) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    if file not in facts.files:
        raise MissingFact("file", [file])
    header, *rows = facts.files[file]
    return header, rows


def _table_cell(facts: KnownFacts, file: str, row: str, column: str) -> str:
    header, rows = _file_table(facts, file)
    return next(cells[header.index(column)] for cells in rows if cells[0] == row)


def _row_with_most(facts: KnownFacts, file: str, column: str) -> str:
    header, rows = _file_table(facts, file)
    return max(rows, key=lambda cells: int(cells[header.index(column)]))[0]


def _rows_above(facts: KnownFacts, file: str, column: str, bound: str) -> list[str]:
    header, rows = _file_table(facts, file)
    return [cells[0] for cells in rows if int(cells[header.index(column)]) > int(bound)]


def _difference(facts: KnownFacts, first: str, second: str) -> str:
    low, high = sorted((first, second), key=int)
    return _computed_value(facts, f"{high} - {low}")


def _add(facts: KnownFacts, first: str, second: str) -> str:
    return _computed_value(facts, f"{first} + {second}")


def _computed_value(facts: KnownFacts, expression: str) -> str:
    if expression not in facts.computed:
        raise MissingFact("value", [expression])
    return facts.computed[expression]


def _sort_names(_: KnownFacts, names: list[str]) -> list[str]:
    return sorted(set(names))


_NODE_FUNCTIONS: Mapping[str, Any] = {
    "page": _page_field,
    "cell": _table_cell,
    "most": _row_with_most,
    "above": _rows_above,
    "between": _difference,
    "sum": _add,
    "sorted": _sort_names,
}


Rows = Sequence[Sequence[str]]


def _write_csv(rows: Rows) -> str:
    return "\n".join(",".join(cells) for cells in rows)


def _write_json(rows: Rows) -> str:
    header, *body_rows = rows
    return "[\n" + ",\n".join(json.dumps(dict(zip(header, cells, strict=True))) for cells in body_rows) + "\n]"


def _write_markdown(rows: Rows) -> str:
    header, *body_rows = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *body_rows))


def _write_text(rows: Rows) -> str:
    header, *body_rows = rows
    return "\n".join(
        "; ".join(f"{name} {cell}" for name, cell in zip(header, cells, strict=True)) for cells in body_rows
    )


def _parse_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def _parse_json(text: str) -> list[list[str]]:
    rows = json.loads(text)
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _parse_markdown(text: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [row for row in rows if set("".join(row)) != {"-"}]


def _parse_text(text: str) -> list[list[str]]:
    rows = [[cell.partition(" ") for cell in line.split("; ")] for line in text.splitlines()]
    return [[name for name, _, _ in rows[0]], *([value for _, _, value in row] for row in rows)]


WRITERS: Mapping[str, Callable[[Rows], str]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".md": _write_markdown,
    ".txt": _write_text,
}
PARSERS: Mapping[str, Callable[[str], list[list[str]]]] = {
    ".csv": _parse_csv,
    ".json": _parse_json,
    ".md": _parse_markdown,
    ".txt": _parse_text,
}


def file_suffix(name: str) -> str:
    """Return the extension of a file name, with its dot.

    >>> file_suffix("scores.csv")
    '.csv'
    """
    return name[name.rindex(".") :]
