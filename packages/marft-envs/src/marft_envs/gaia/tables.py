"""Attached tables: writers and readers for several file formats."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence

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
