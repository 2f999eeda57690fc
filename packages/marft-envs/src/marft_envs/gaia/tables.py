"""Attached tables: writers and readers for several file formats."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence

Rows = Sequence[Sequence[str]]


def _csv(rows: Rows) -> str:
    return "\n".join(",".join(cells) for cells in rows)


def _json(rows: Rows) -> str:
    header, *rest = rows
    return "[\n" + ",\n".join(json.dumps(dict(zip(header, cells, strict=True))) for cells in rest) + "\n]"


def _markdown(rows: Rows) -> str:
    header, *rest = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rest))


def _text(rows: Rows) -> str:
    header, *rest = rows
    return "\n".join("; ".join(f"{name} {cell}" for name, cell in zip(header, cells, strict=True)) for cells in rest)


def _read_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def _read_json(text: str) -> list[list[str]]:
    rows = json.loads(text)
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _read_markdown(text: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [row for row in rows if set("".join(row)) != {"-"}]


def _read_text(text: str) -> list[list[str]]:
    rows = [[cell.partition(" ") for cell in line.split("; ")] for line in text.splitlines()]
    return [[name for name, _, _ in rows[0]], *([value for _, _, value in row] for row in rows)]


WRITTEN: Mapping[str, Callable[[Rows], str]] = {".csv": _csv, ".json": _json, ".md": _markdown, ".txt": _text}
READ: Mapping[str, Callable[[str], list[list[str]]]] = {
    ".csv": _read_csv, ".json": _read_json, ".md": _read_markdown, ".txt": _read_text
}  # fmt: skip


def ending(name: str) -> str:
    """Return the extension of a file name, with its dot.

    >>> ending("scores.csv")
    '.csv'
    """
    return name[name.rindex(".") :]
