"""Folders of rows: what each role of a team said, a file a role and an action a line, as ``marft synthesize`` has it.

A row is a prompt and its completion, as programs for supervised fine-tuning take them. ``order`` says where it stands
among all rows of the folder: so the roles' files are read as the episodes that they are of.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import Any

from marft.traces.lines import objects
from marft.traces.record import Tally

ROWS, MANIFEST = "rows", "manifest.json"


def rows_in(path: Path) -> Path | None:
    """Where a folder has its rows, in itself or below; None where it has none."""
    return next((place for place in (path, path / ROWS) if (place / MANIFEST).is_file()), None)


def lines(path: Path, tally: Tally) -> Iterator[tuple[str, dict[str, Any]]]:
    """``(place, object)`` of each row of a folder, those of an episode one after the other, as they were asked for.

    Raises:
        ValueError: the folder has no rows, or a file cannot be opened.
    """
    folder = rows_in(path)
    if folder is None:
        raise ValueError(f"{path} has no rows ({MANIFEST}); make some:  marft synthesize RECIPE --teacher …")
    files = [_ordered(file, tally) for file in sorted(folder.glob("*.jsonl"))]
    return ((place, row) for _, place, row in merge(*files, key=lambda row: row[0]))


def _ordered(file: Path, tally: Tally) -> Iterator[tuple[tuple[int, int], str, dict[str, Any]]]:
    for place, row in objects(file, tally):
        order = row.get("order")
        if isinstance(order, list) and len(order) == 2 and all(type(number) is int for number in order):
            yield (order[0], order[1]), place, row
        else:
            tally.skip("line", "it does not say where it stands among the rows (order)", place)
